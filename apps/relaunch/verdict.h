// Why a job has ended, and which of its ranks are to blame: what relaunch decides by.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/relaunch/rank_record.h"

namespace tessera::apps {

/// What came of one job.
struct JobEnd {
  int code = 0;                          // mpirun's, or 128 + the signal that has killed it
  int ranks = 0;                         // the number that mpirun was asked for
  bool hung = false;                     // mpirun could not end it, as where a host does not answer
  std::vector<RankRecord> records = {};  // in the order in which they have arrived
};

struct LostRank {
  int rank = 0;
  std::string host = {};  // by its own name; empty where it has never begun
  std::string why = {};   // "was killed by SIGKILL"
  int64_t step = 0;  // counted from 1: in which it was, as far as it is known
  int signal = 0;    // 0 where it was none
};

struct Verdict {
  enum class Kind {
    finished,
    lost_ranks,  // the job may be started again without them
    stalled,     // nothing has moved, and no rank is known to be the reason
    failed,      // for a reason that would come again: bad input, a loss that is not finite
  };
  Kind kind = Kind::failed;
  std::vector<LostRank> lost = {};
  std::string why = {};  // stalled, failed
  int64_t step = 0;      // stalled
};

/// A rank is lost where it was the first to be killed by a signal, where a collective has waited
/// for it in vain, or where its host has fallen silent. Ranks that mpirun has ended because of it
/// are not.
Verdict judge(const JobEnd& job);

}  // namespace tessera::apps
