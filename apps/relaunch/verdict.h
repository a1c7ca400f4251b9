// Judges why a job ended and which of its ranks caused the end. relaunch acts on this verdict.
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
  int launcher_signal = 0;               // the signal by which mpirun crashed, or 0
  std::vector<RankRecord> records = {};  // in the order of arrival
};

struct LostRank {
  int rank = 0;
  std::string host = {};       // the host's own name; empty if the rank never started
  std::string why = {};        // "was killed by SIGKILL"
  int64_t finished_steps = 0;  // the number of steps that the rank has finished, as far as known
  int signal = 0;              // the signal that killed the rank; 0: none
};

struct Verdict {
  enum class Kind {
    finished,
    lost_ranks,  // the job may be started again without the lost ranks
    stalled,     // a collective stalled, and no rank is known to be the reason
    crashed,     // mpirun crashed, and no rank is known to be lost
    failed,      // for a reason that would occur again: bad input, a loss that is not finite
  };
  Kind kind = Kind::failed;
  std::vector<LostRank> lost = {};
  std::string why = {};        // for stalled, crashed and failed: the reason
  int64_t finished_steps = 0;  // for stalled
};

/// Judges a job by the first of these rules that applies:
///
///   1. mpirun ended with exit code 0: finished.
///   2. A rank was killed: the first killed rank is lost.
///   3. A rank reported bad input: failed.
///   4. mpirun crashed:
///        - Ranks are absent: the absent ranks are lost, and the silent ranks on their hosts.
///        - Otherwise: crashed.
///   5. A rank failed. The first failure in the records decides:
///        - A timeout in a collective: the absent ranks are lost. If mpirun hung, the silent ranks
///          are lost too. If no rank is lost so far, the stopped ranks are lost. If no rank was
///          stopped: stalled.
///        - Any other failure: if mpirun hung, the silent ranks are lost. If mpirun did not hang,
///          or no rank is silent: failed.
///   6. Ranks are silent: the silent ranks are lost.
///   7. Otherwise: failed.
///
/// The rules use these terms:
///
///   killed    A signal ended the rank before mpirun told the rank to end.
///   stopped   A signal such as SIGSTOP had stopped the rank when mpirun told the rank to end.
///   silent    The rank reported its start at most, but another rank reported more.
///   absent    Another rank timed out while it waited for this rank, and this rank probably caused
///             the timeout (absent_ranks in verdict.cpp).
///
/// Rule 4 ignores all reported errors except timeouts, because a crash of mpirun causes errors: it
/// breaks the ranks' connections. If the launcher is a script around mpirun, the script's exit code
/// hides a crash of mpirun, so rule 4 does not apply.
Verdict judge(const JobEnd& job);

}  // namespace tessera::apps
