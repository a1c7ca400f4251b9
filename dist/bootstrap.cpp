// Starting and ending a rank. There are two rules:
//  - MPI_Finalize is called only when the body of every rank has returned. A rank that finalizes
//    while others wait in a collective would hang the job for ever.
//  - A rank that fails prints its error and calls MPI_Abort, which immediately ends the other
//    ranks.
#include "dist/bootstrap.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "core/awake_time.h"
#include "core/run_status.h"
#include "core/text/control_character.h"
#include "core/text/error_text.h"
#include "core/text/step_number.h"
#include "dist/launcher.h"
#include "dist/mpi/mpi_check.h"
#include "dist/stalled.h"
#include "dist/start_guard.h"

namespace tessera::dist {

namespace {

// Read by the signal handlers; lock-free, because handlers must not take locks.
std::atomic<int> own_rank{0};
std::atomic<int64_t> running_step{-1};
std::atomic<int64_t> finished_step{-1};
std::atomic<bool> said_last_words{false};
std::atomic<bool> line_open{false};
std::atomic_flag ending;  // set by the first thread in end_job; handlers do not use it
struct sigaction program_handler;  // the program's own handler of SIGTERM
// Over this communicator, each rank tells the others that its body (see run()) has returned.
MPI_Comm ending_ranks = MPI_COMM_NULL;
MPI_Request all_ended = MPI_REQUEST_NULL;
bool announced_end = false;
World* body_world = nullptr;  // the world of run() while the body runs, otherwise null
static_assert(std::atomic<int64_t>::is_always_lock_free);

bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

// Tells the other ranks, once, that this rank's body has returned.
void announce_end() {
  if (std::exchange(announced_end, true)) return;
  TESSERA_MPI(MPI_Ibarrier(ending_ranks, &all_ended));
}

// Returns true when all ranks have announced their end; false if this takes longer than `limit_s`.
// Time in which this process itself is stopped does not count.
bool all_end_within(double limit_s) {
  for (AwakeTime waited; waited.seconds() <= limit_s; waited.look()) {
    int done = 0;
    TESSERA_MPI(MPI_Test(&all_ended, &done, MPI_STATUS_IGNORE));
    if (done != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Handler of SIGTERM. Prints the last finished step, and then runs the program's own handler. Ends
// the process if the program has no handler.
void told_to_end(int signal, siginfo_t* info, void* context) {
  say_last_words();
  if ((program_handler.sa_flags & SA_SIGINFO) != 0) {
    program_handler.sa_sigaction(signal, info, context);
  } else if (program_handler.sa_handler != SIG_DFL) {
    program_handler.sa_handler(signal);
  } else {
    _exit(128 + SIGTERM);
  }
}

// Handler of SIGINT (Ctrl-C). The default action is restored by now (SA_RESETHAND), so raising the
// signal again ends the program by the signal. A shell then ends its script too. After a plain
// exit, even with code 130, the shell would continue its script.
void interrupted(int) {
  say_last_words();
  raise(SIGINT);
  _exit(128 + SIGINT);
}

// Returns the current handler of SIGTERM. init calls this before MPI installs its own handlers.
struct sigaction handler_of_sigterm() {
  struct sigaction handler = {};
  sigaction(SIGTERM, nullptr, &handler);
  return handler;
}

void handle_sigterm(const struct sigaction& before) {
  const bool plain = (before.sa_flags & SA_SIGINFO) == 0;
  // A program that ignores the signal keeps ignoring it. init may be called twice. The second call
  // must not take told_to_end for the program's own handler.
  if (plain && before.sa_handler == SIG_IGN) return;
  if (!plain && before.sa_sigaction == told_to_end) return;
  program_handler = before;
  struct sigaction action = before;  // keeps the program's mask and flags
  action.sa_flags |= SA_SIGINFO;
  action.sa_sigaction = told_to_end;
  sigaction(SIGTERM, &action, nullptr);
}

// Does nothing if the program has its own handler of SIGINT or ignores SIGINT.
void handle_sigint() {
  struct sigaction action {};
  sigaction(SIGINT, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = interrupted;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  sigaction(SIGINT, &action, nullptr);
}

// Ends this process in 5 s, in case MPI_Abort does not. MPI_Abort waits until the launcher's daemon
// ends the process, but the daemon may be waiting for a host that is gone.
void exit_later(int exit_code) {
  try {
    std::thread([exit_code] {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      _exit(exit_code);
    }).detach();
  } catch (const std::system_error&) {
    // No thread could be started; MPI_Abort usually ends the process without this help.
  }
}

// Prints one line, with control characters escaped, and ends the job on all ranks. If several
// threads fail, only the first one prints, and the others sleep here until the process ends.
[[noreturn]] void end_job(const std::string& message, int exit_code) {
  while (ending.test_and_set()) pause();
  said_last_words = true;  // `message` takes the place of the last words
  std::fflush(stdout);
  if (line_open.exchange(false)) std::fputs("\n", stderr);
  std::fputs((with_escaped_controls(message) + "\n").c_str(), stderr);
  std::fflush(stderr);
  if (mpi_runs()) {
    exit_later(exit_code);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  _exit(exit_code);
}

// "step 6", or "after step 6" if that step has ended; empty before the first step.
std::string running_step_text() {
  const int64_t running = running_step;
  const int64_t finished = finished_step;
  if (running > finished) return fmt::format("step {}", step_number(running));
  return finished >= 0 ? fmt::format("after step {}", step_number(finished)) : "";
}

// All ranks usually find the same fault in their input, but the user needs only one report. So rank
// 0 reports its fault immediately and ends the job, while the other ranks sleep. They sleep for
// 3 s, because on a busy machine it may take more than a second until the job ends. But they sleep
// at most half of `comm_timeout_s`, because a rank that waits for them longer than `comm_timeout_s`
// reports a timeout. If rank 0 has found no fault, the first rank that wakes up reports its own
// fault.
[[noreturn]] void end_with_input_error(const std::string& text, double comm_timeout_s) {
  publish_failure(RunFailure::input);
  const std::string step = running_step_text();
  if (own_rank == 0) {
    end_job(fmt::format("error: {}{}", text, step.empty() ? "" : " (" + step + ")"), 2);
  }
  said_last_words = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(std::min(3.0, comm_timeout_s / 2)));
  end_job(
      fmt::format("error: {} (rank {}{})", text, own_rank.load(), step.empty() ? "" : ", " + step),
      2);
}

[[noreturn]] void end_with_error(const std::string& text) {
  const std::string step = running_step_text();
  // Do not name the step twice if the text begins with it.
  const bool says = !step.empty() && !text.starts_with("step ");
  const std::string place = says ? ", " + step : "";
  end_job(fmt::format("rank {}{}: {}", own_rank.load(), place, text), 1);
}

World init_mpi(int& argc, char**& argv) {
  int provided = 0;
  TESSERA_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
  if (provided < MPI_THREAD_MULTIPLE) {
    fail("MPI_Init_thread: this MPI provides thread level {}, expected MPI_THREAD_MULTIPLE ({})",
         provided, static_cast<int>(MPI_THREAD_MULTIPLE));
  }
  // By default MPI ends the job on an error. With the handler MPI_ERRORS_RETURN, MPI returns the
  // error, and TESSERA_MPI throws an Error that names the failed call.
  TESSERA_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  World world;
  TESSERA_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world.rank));
  TESSERA_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world.size));
  own_rank = world.rank;

  MPI_Comm host = MPI_COMM_NULL;
  TESSERA_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL,
                                  &host));
  TESSERA_MPI(MPI_Comm_rank(host, &world.local_rank));
  TESSERA_MPI(MPI_Comm_size(host, &world.local_size));
  TESSERA_MPI(MPI_Comm_free(&host));
  TESSERA_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &ending_ranks));
  world.communicator = mpi_communicator();
  return world;
}

}  // namespace

World init(int& argc, char**& argv) {
  const struct sigaction before = handler_of_sigterm();
  World world;
  if (started_by_launcher()) {
    // The program parses its command line later. The limit is needed before: the guard uses it now,
    // collectives may come before the command line is parsed, and run() needs the limit to report a
    // fault in the command line.
    const double timeout_s = comm_timeout_in(argc, argv);
    const StartGuard guard(timeout_s);
    world = init_mpi(argc, argv);
    world.comm_timeout_s = timeout_s;
    world.communicator->set_timeout(timeout_s);
  } else {
    world.communicator = single_communicator();
  }
  // Handlers are set after MPI_Init_thread, which may set handlers of its own.
  handle_sigterm(before);
  handle_sigint();
  check_launcher(world.size);
  return world;
}

void finish(World& world) {
  if (mpi_runs()) {
    announce_end();
    // Poll until all ranks have announced their end, and only then enter the barrier below. In
    // NCCL's barrier a rank makes no progress in MPI, so its announcement might not arrive.
    const double limit_s = end_timeouts * world.comm_timeout_s;
    if (!all_end_within(limit_s)) {
      throw StalledError(
          fmt::format("finish has not ended in {} s ({} times --comm-timeout): a rank has not made "
                      "this call (stopped, hanging, or computing)",
                      limit_s, end_timeouts),
          {});
    }
    // Wait for all ranks, because no rank may tear down its communicator while others still send.
    world.communicator->barrier();
    TESSERA_MPI(MPI_Comm_free(&ending_ranks));
    world.communicator.reset();
    MPI_Finalize();
  }
  std::fflush(stdout);
}

namespace {

// Called when this rank's body has returned a failure. The other ranks may wait for this rank in a
// collective for ever. So the job ends unless all other ranks return within 5 s.
void end_unless_all_end(int code) {
  if (!mpi_runs()) return;
  announce_end();
  if (all_end_within(5)) return;
  constexpr auto text = "rank {}: ended with code {}, while other ranks are still running";
  end_job(fmt::format(text, own_rank.load(), code), code);
}

// To be called in a catch block. Reports the caught exception and ends the job.
[[noreturn]] void end_with_exception(const World& world) {
  try {
    throw;
  } catch (const InputError& error) {
    end_with_input_error(error.what(), world.comm_timeout_s);
  } catch (const StalledError& error) {
    publish_failure(RunFailure::stalled, error.ranks);
    end_with_error(error.what());
  } catch (const std::exception& error) {
    publish_failure(RunFailure::error);
    end_with_error(error_text(error));
  } catch (...) {
    publish_failure(RunFailure::error);
    end_with_error("an exception that is not a std::exception");
  }
}

}  // namespace

int run(int argc, char** argv, const std::function<int(World&)>& body) {
  // Declared outside of `try`: the communicator must not be destroyed before end_with_exception()
  // has reported the error and ended the job.
  World world;
  try {
    world = init(argc, argv);
    body_world = &world;
    int result = body(world);
    body_world = nullptr;
    if (result != 0 && (result & 255) == 0) result = 1;  // a shell sees only the low 8 bits
    if (result != 0) end_unless_all_end(result);
    finish(world);
    return result;
  } catch (...) {
    end_with_exception(world);
  }
}

void end_failed_body() {
  if (body_world != nullptr) end_with_exception(*body_world);
}

void fail_job(const std::string& text) {
  publish_failure(RunFailure::error);
  end_with_error(text);
}

void set_running_step(int64_t step) { running_step = step; }

void set_finished_step(int64_t step) {
  finished_step = step;
  publish_finished_steps(step + 1);
}

void set_line_open(bool open) { line_open = open; }

void say_last_words() {
  const int64_t step = finished_step.load();
  const bool trains = step >= 0 || running_step >= 0;
  if (trains && !said_last_words.exchange(true)) {
    std::array<char, 96> text{};
    char* end = text.data();
    const auto append = [&](std::string_view part) {
      std::memcpy(end, part.data(), part.size());
      end += part.size();
    };
    if (line_open) append("\n");
    append("rank ");
    end = std::to_chars(end, end + 12, own_rank.load()).ptr;
    if (step >= 0) {
      append(": told to end; last finished step ");
      end = std::to_chars(end, end + 20, step_number(step)).ptr;
    } else {
      append(": told to end; no step finished yet");
    }
    append("\n");
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, text.data(), static_cast<size_t>(end - text.data()));
  }
}

}  // namespace tessera::dist
