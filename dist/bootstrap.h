// How a program becomes a rank: MPI gives rank, size and local rank. Without mpirun the job has one
// rank, and the program is the same.
//
//   int main(int argc, char** argv) {
//     return tessera::dist::run(argc, argv, [&](tessera::dist::World& world) {
//       ...
//       return 0;
//     });
//   }
//
// `run` ends a failing job on every rank: it prints the error with rank and step and calls
// MPI_Abort, with exit code 2 for InputError and 1 for anything else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dist/communicator.h"

namespace tessera::dist {

struct World {
  std::shared_ptr<Communicator> communicator;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  /// Of collectives; dist::choose_devices sets it.
  double comm_timeout_s = default_comm_timeout_s;
  /// In what the ranks' GPUs or their libraries differ, so that the same work has other bits on
  /// another rank; empty where they are equal. dist::choose_devices finds out.
  std::string difference = {};
};

/// Initialises MPI when the program was started by mpirun (or a PMI/PMIx launcher). Throws
/// InputError where the launcher has started more processes than MPI knows of. From here on a rank
/// that is told to end (SIGTERM) or stopped by Ctrl-C says which step it finished last. Behind that
/// comes the program's own handler of SIGTERM where it had one, and what follows is up to it; a
/// program that ignores SIGTERM goes on ignoring it. A handler of SIGINT that the program has set
/// before, and one that is ignored, stay.
/// MPI_COMM_WORLD returns errors from then on (TESSERA_MPI throws them).
World init(int& argc, char**& argv);

/// Ends MPI. Called by every rank when all went well; never while an exception unwinds.
void finish(World& world);

/// init, body, finish; the process's exit code. Where the body returns another code than 0 while
/// other ranks go on, the job ends with it.
int run(int argc, char** argv, const std::function<int(World&)>& body);

/// Says what failed, with rank and step, and ends the job on all ranks: for a thread with nobody
/// to throw to. `last`, which must not throw, runs between the two, on a thread of its own; after a
/// few seconds the job ends without it.
[[noreturn]] void fail_job(const std::string& text, const std::function<void()>& last = {});

/// The step that this rank is in, and the last one that it finished, from 0: for its errors, and
/// for its last words when it is told to end or the user stops it (Ctrl-C), which count from 1. The
/// optimizer sets both.
void set_running_step(int64_t step);
void set_finished_step(int64_t step);

/// Whether stderr is in the middle of a line, which errors and last words end before they begin.
void set_line_open(bool open);

}  // namespace tessera::dist
