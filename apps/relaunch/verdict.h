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

/// Judges a job by the first of these rules that applies. Absent, silent and stopped ranks are
/// defined below the rules.
///
///   1. mpirun ended with exit code 0: finished.
///   2. A signal killed ranks: the first killed rank is lost.
///   3. mpirun crashed:
///        - A rank has bad input: failed.
///        - Ranks are absent: the absent ranks are lost, and the silent ranks on their hosts.
///        - Otherwise: crashed.
///   4. A rank reported a failure, or a timeout in a collective. The first such report decides:
///        - Bad input: failed.
///        - Another failure: if mpirun hung, and ranks are silent, the silent ranks are lost.
///          Otherwise: failed.
///        - A timeout: the absent ranks are lost, and the silent ranks too if mpirun hung. If no
///          rank is lost so far, the stopped ranks are lost. If no rank was stopped: stalled.
///   5. Ranks are silent: the silent ranks are lost.
///   6. Otherwise: failed.
///
/// A rank is silent if it reported nothing after its start, although other ranks did. A rank is
/// stopped if a signal such as SIGSTOP had stopped its program when mpirun ended the rank.
///
/// A rank that timed out lists the ranks for which it waited. Listed ranks that timed out too are
/// not absent. Of the remaining listed ranks, those that were stopped are absent. If none was
/// stopped, those that did not wait in a collective are absent. If all waited, all are absent.
///
/// Ranks that mpirun ended because another rank failed are not lost. A crash of mpirun breaks the
/// ranks' connections, so all errors that ranks then report, except for bad input, count as results
/// of the crash. If the launcher is a script around mpirun, the script's exit code hides a crash of
/// mpirun, and rule 3 does not apply.
Verdict judge(const JobEnd& job);

}  // namespace tessera::apps
