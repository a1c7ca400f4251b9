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

/// Judges a job by the first of these cases that applies. F is the rank of the first record that
/// reports a failure, or a timeout in a collective.
///
///   mpirun ended with exit code 0            finished
///   a signal killed ranks                    the first killed rank is lost
///   mpirun crashed, and a rank               failed
///     has bad input
///   mpirun crashed, and a rank timed out     the ranks it waited for are lost, and the silent
///     and listed ranks it waited for           ranks on their hosts
///   mpirun crashed in any other case         crashed
///   F failed, but not by bad input;          the silent ranks are lost
///     mpirun hung, and ranks are silent
///   F failed in any other way                failed
///   F timed out                              the ranks it waited for are lost, and the silent
///                                              ranks if mpirun hung; if there are none of
///                                              either, the stopped ranks of the job are lost;
///                                              if there are none of these, stalled
///   ranks are silent                         the silent ranks are lost
///   none of these                            failed
///
/// A rank is silent if it reported nothing after its start, although other ranks did. In the rows
/// above, the ranks that a rank waited for do not include ranks that timed out too. Of the others,
/// only the first of these groups that is not empty is lost: the ranks that were stopped; the ranks
/// that did not wait for other ranks themselves; all of them.
///
/// Ranks that mpirun ended because another rank failed are not lost. A crash of mpirun breaks the
/// ranks' connections. So any error that a rank reports then, except for bad input, counts as a
/// result of the crash. If the launcher is a script around mpirun, the script's exit code hides the
/// crash.
Verdict judge(const JobEnd& job);

}  // namespace tessera::apps
