// Judges why a job ended and which of its ranks caused that. relaunch decides by it how to go on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/relaunch/rank_record.h"

namespace tessera::apps {

/// How one job ended.
struct JobEnd {
  int code = 0;                          // mpirun's exit code, or 128 + the signal that killed it
  int ranks = 0;                         // the number of ranks that mpirun was asked for
  bool hung = false;                     // mpirun had to be killed, as when a host does not answer
  std::vector<RankRecord> records = {};  // in the order of arrival
};

struct LostRank {
  int rank = 0;
  std::string host = {};  // as the host calls itself; empty if the rank never started
  std::string why = {};   // "was killed by SIGKILL"
  int64_t step = 0;  // the step the rank was in, from 1, as far as known
  int signal = 0;    // 0: no signal killed it
};

struct Verdict {
  enum class Kind {
    finished,
    lost_ranks,  // the job may be started again without them
    stalled,     // no rank made progress, and no rank is known to be the reason
    failed,      // for a reason that would occur again: bad input, a loss that is not finite
  };
  Kind kind = Kind::failed;
  std::vector<LostRank> lost = {};
  std::string why = {};  // stalled, failed
  int64_t step = 0;      // stalled
};

/// A rank is lost if it was the first to be killed by a signal, if a collective waited for it in
/// vain, or if its host fell silent. Ranks that mpirun ended as a consequence are not lost.
Verdict judge(const JobEnd& job);

}  // namespace tessera::apps
