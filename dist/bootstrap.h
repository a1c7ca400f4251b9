// Makes a program a rank of a job: MPI gives rank, size and local rank. Without mpirun the same
// program is a job of one rank.
//
//   int main(int argc, char** argv) {
//     return tessera::dist::run(argc, argv, [&](tessera::dist::World& world) {
//       ...
//       return 0;
//     });
//   }
//
// If the body throws, `run` prints the error with rank and training step, and ends the job on every
// rank (under mpirun by MPI_Abort). An InputError of rank 0 is printed without the rank, because
// usually all ranks find the same fault. The exit code is 2 for InputError and 1 for any other
// error.
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
  /// Time limit of collectives in seconds; dist::choose_devices sets it, here and in the
  /// communicator. Before that, init has set both to --comm-timeout of the command line, if there
  /// is a launcher. A program that takes the limit from elsewhere should set both right after init,
  /// here and with communicator->set_timeout: `run` needs the limit to report bad input of one rank
  /// before the other ranks time out.
  double comm_timeout_s = default_comm_timeout_s;
  /// Says how the ranks' GPUs or GPU libraries differ; empty if they are equal, or if the ranks
  /// compute on the CPU. If they differ, the same work may give different bits on different ranks.
  /// Set by dist::choose_devices.
  std::string difference = {};
};

/// Initialises MPI if the program was started by mpirun (or a PMI/PMIx launcher). Throws InputError
/// if the launcher has started several processes but MPI connects none of them. After this call:
///  - on SIGTERM or SIGINT (Ctrl-C) a rank prints its last finished step if it has begun a step,
///    and then ends;
///  - if the program had a handler of SIGTERM before init, the rank still prints its last finished
///    step, but then runs this handler instead of ending;
///  - if the program has its own handler of SIGINT, only that handler runs;
///  - a program that ignores one of these signals keeps ignoring it;
///  - if MPI is initialised, MPI_COMM_WORLD returns errors, and TESSERA_MPI throws them.
World init(int& argc, char**& argv);

/// The time limit of finish(), as a multiple of World::comm_timeout_s. The limit is long, because
/// rank 0 may still write traces and reports when the other ranks are done.
inline constexpr int end_timeouts = 10;

/// Ends MPI. Every rank must call finish() after success. Throws StalledError (dist/stalled.h) if a
/// rank has not called finish() in time (end_timeouts). No rank may call finish() while an
/// exception unwinds.
void finish(World& world);

/// Calls init, body and finish. Returns the body's result, which is the process's exit code. Shells
/// see only the low 8 bits of a code, so a failure whose low 8 bits are 0, such as 256, becomes 1.
/// If the code is not 0, and the body of another rank does not return within 5 s, the job ends on
/// all ranks with this code.
int run(int argc, char** argv, const std::function<int(World&)>& body);

/// To be called in a catch block in the body of run(). Reports the caught exception and ends the
/// job on all ranks, as run() does if its body throws, but without unwinding the body. This is for
/// code whose destructors may wait long: the other ranks might reach their time limit before the
/// exception reaches run(), and would then report this rank as lost. Outside of run(), does
/// nothing, and the caller must rethrow.
void end_failed_body();

/// Prints `text`, with rank and step, and ends the job on all ranks. Meant for threads whose
/// exceptions are not caught.
[[noreturn]] void fail_job(const std::string& text);

/// Set the running step and the last finished step of this rank, counted from 0; -1 stands for
/// none. The optimizer calls these functions. A run that resumes also sets the last finished step
/// before its first step. Two kinds of messages name these steps, counted from 1: errors, and the
/// last message of a rank that is ended by SIGTERM or Ctrl-C.
void set_running_step(int64_t step);
void set_finished_step(int64_t step);

/// Prints the last finished training step, at most once, if a training step has begun or finished.
/// The handlers that init sets call this function when another rank has died (SIGTERM) or the user
/// ends the job (SIGTERM or SIGINT). If a program replaces the handler of SIGTERM after init,
/// its own handler must call this function. The function makes only async-signal-safe calls.
void say_last_words();

/// Set to true while stderr is in the middle of a line. Messages then begin with a newline.
void set_line_open(bool open);

}  // namespace tessera::dist
