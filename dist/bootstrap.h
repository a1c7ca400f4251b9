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
  /// Time limit of collectives in seconds; dist::choose_devices sets it.
  double comm_timeout_s = default_comm_timeout_s;
  /// How the ranks' GPUs or GPU libraries differ, in which case the same work may give different
  /// bits on different ranks; empty if they are equal. Set by dist::choose_devices.
  std::string difference = {};
};

/// Initialises MPI if the program was started by mpirun (or a PMI/PMIx launcher). Throws InputError
/// if the launcher has started several processes but MPI connects none of them. From then on:
///  - a rank that gets SIGTERM, or is stopped by Ctrl-C, prints which step it finished last;
///  - after that, SIGTERM runs the handler that the program had set before, or else ends the
///    process; a program that ignores SIGTERM keeps ignoring it;
///  - a handler of SIGINT that the program had set before stays, and so does ignoring SIGINT;
///  - MPI_COMM_WORLD returns errors (TESSERA_MPI throws them).
World init(int& argc, char**& argv);

/// Ends MPI. Called by every rank when all went well; never while an exception unwinds.
void finish(World& world);

/// Calls init, body and finish; returns the process's exit code. If the body returns a code other
/// than 0 while other ranks go on, the job ends with that code.
int run(int argc, char** argv, const std::function<int(World&)>& body);

/// Prints what failed, with rank and step, and ends the job on all ranks: for threads in which an
/// exception would not be caught. `last`, which must not throw, runs after the message and before
/// the job ends, on a thread of its own; the job does not wait more than a few seconds for it.
[[noreturn]] void fail_job(const std::string& text, const std::function<void()>& last = {});

/// The step that this rank is in, and the last one that it finished, counted from 0. Errors and the
/// last words of a rank that is ended (SIGTERM, Ctrl-C) print them, counted from 1. The optimizer
/// sets both.
void set_running_step(int64_t step);
void set_finished_step(int64_t step);

/// True while stderr is in the middle of a line: errors and last words then begin with a newline.
void set_line_open(bool open);

}  // namespace tessera::dist
