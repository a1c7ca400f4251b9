// Starting and ending a rank. Two rules: MPI_Finalize is called only when the body of every rank
// has returned, because a rank that finalizes while others wait in a collective hangs the job for
// ever; and whoever fails says so and calls MPI_Abort, which ends the others at once.
#include "dist/bootstrap.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "dist/mpi/mpi_check.h"

namespace tessera::dist {

namespace {

// What the handler of SIGTERM reads; lock-free, so that it may.
std::atomic<int> own_rank{0};
std::atomic<int64_t> running_step{-1};
std::atomic<int64_t> finished_step{-1};
std::atomic<bool> said_last_words{false};
std::atomic_flag ending;
// Ranks tell each other over this communicator that their body has returned.
MPI_Comm ending_ranks = MPI_COMM_NULL;
MPI_Request all_ended = MPI_REQUEST_NULL;
bool announced_end = false;
static_assert(std::atomic<int64_t>::is_always_lock_free);

/// How many processes the launcher says that it has started, and the variable that says so.
struct Launched {
  const char* variable = nullptr;
  std::string size;
};

// Of the launchers the innermost counts: within a Slurm allocation mpirun starts the ranks, and
// Slurm's own variables are of mpirun's daemons then.
Launched launched() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const char* const size = std::getenv(variable)) return {variable, size};
  }
  return {};
}

// Whether MPI is asked: Open MPI, MPICH and Intel MPI, PMIx (prterun, srun --mpi=pmix) and whoever
// says that there are several processes.
bool started_by_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  const Launched found = launched();
  return found.variable != nullptr && found.size != "1";
}

// N processes that do not know of each other would train N times, and write the same files.
void check_launcher(const World& world) {
  const auto [variable, size] = launched();
  // A world of several ranks is a job; Slurm's number may be that of another launcher's daemons.
  if (variable == nullptr || size == "1" || world.size > 1) return;
  fail_input(
      "the launcher has started {} processes ({}), but MPI connects none of them: start the "
      "program with the mpirun of the MPI that it is built with, or with srun and the --mpi "
      "(pmix, pmi2) that this MPI knows",
      size, variable);
}

bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

// Once: this rank's body has returned.
void announce_end() {
  if (std::exchange(announced_end, true)) return;
  TESSERA_MPI(MPI_Ibarrier(ending_ranks, &all_ended));
}

// A rank is told to end when another one has died or the user has stopped mpirun. Only calls that a
// signal handler may make.
void say_last_words(int) {
  const int64_t step = finished_step.load();
  const bool trains = step >= 0 || running_step >= 0;
  if (trains && !said_last_words.exchange(true)) {
    std::array<char, 96> text{};
    char* end = text.data();
    const auto append = [&](std::string_view part) {
      std::memcpy(end, part.data(), part.size());
      end += part.size();
    };
    append("rank ");
    end = std::to_chars(end, end + 12, own_rank.load()).ptr;
    if (step >= 0) {
      append(": told to end; last finished step ");
      end = std::to_chars(end, end + 20, step).ptr;
    } else {
      append(": told to end; no step finished yet");
    }
    append("\n");
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, text.data(), static_cast<size_t>(end - text.data()));
  }
  _exit(128 + SIGTERM);
}

void install_last_words() {
  struct sigaction action{};
  action.sa_handler = say_last_words;
  sigaction(SIGTERM, &action, nullptr);
}

// Runs `last` on a thread of its own and waits for it a few seconds, no longer: it may depend on
// what the failing job will never let go, as ncclCommAbort does on graphs that captured its calls.
void run_with_deadline(const std::function<void()>& last) {
  const auto done = std::make_shared<std::promise<void>>();
  try {
    std::thread([done, last] {
      last();
      done->set_value();
    }).detach();
  } catch (const std::system_error&) {
    return;  // no thread is to be had; the job ends all the same
  }
  (void)done->get_future().wait_for(std::chrono::seconds(3));
}

// Prints one line and ends the job on all ranks. Of several threads that fail, the first does.
[[noreturn]] void end_job(const std::string& message, int exit_code,
                          const std::function<void()>& last = {}) {
  while (ending.test_and_set()) pause();
  said_last_words = true;  // the message has said it
  std::fflush(stdout);
  std::fputs((message + "\n").c_str(), stderr);
  std::fflush(stderr);
  if (last) run_with_deadline(last);
  if (mpi_runs()) MPI_Abort(MPI_COMM_WORLD, exit_code);
  _exit(exit_code);
}

// Every rank usually finds the same fault in its input: rank 0 reports it and ends the others while
// they sleep. If it does not, because its own input is good, they report it.
[[noreturn]] void end_with_input_error(const std::string& text) {
  if (own_rank == 0) end_job("error: " + text, 2);
  said_last_words = true;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  end_job(fmt::format("error: {} (rank {})", text, own_rank.load()), 2);
}

[[noreturn]] void end_with_error(const std::string& text,
                                 const std::function<void()>& last = {}) {
  const int64_t step = std::max(running_step.load(), finished_step + 1);
  const bool known = running_step >= 0 || finished_step >= 0;
  // A text that begins with its step says it already.
  const bool says = known && !text.starts_with("step ");
  const std::string place = says ? fmt::format(", step {}", step) : "";
  end_job(fmt::format("rank {}{}: {}", own_rank.load(), place, text), 1, last);
}

World init_mpi(int& argc, char**& argv) {
  int provided = 0;
  TESSERA_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
  if (provided < MPI_THREAD_MULTIPLE) {
    fail("MPI_Init_thread: this MPI provides thread level {}, expected MPI_THREAD_MULTIPLE ({})",
         provided, static_cast<int>(MPI_THREAD_MULTIPLE));
  }
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
  World world;
  if (started_by_launcher()) {
    world = init_mpi(argc, argv);
  } else {
    world.communicator = single_communicator();
  }
  // After MPI_Init_thread, which may set handlers of its own.
  install_last_words();
  check_launcher(world);
  return world;
}

void finish(World& world) {
  if (mpi_runs()) {
    announce_end();
    // Until all have come: over NCCL a barrier would not let MPI go on.
    for (int done = 0; done == 0;) {
      TESSERA_MPI(MPI_Test(&all_ended, &done, MPI_STATUS_IGNORE));
      if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // This rank waits for the others to have nothing more to send.
    world.communicator->barrier();
    TESSERA_MPI(MPI_Comm_free(&ending_ranks));
    world.communicator.reset();
    MPI_Finalize();
  }
  std::fflush(stdout);
}

namespace {

// A rank whose body has returned a failure: the others may have come to their end with it, or wait
// in a collective for ever. Ends the job unless they all come within a few seconds.
void end_unless_all_end(int result) {
  if (!mpi_runs()) return;
  announce_end();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (int done = 0; done == 0;) {
    TESSERA_MPI(MPI_Test(&all_ended, &done, MPI_STATUS_IGNORE));
    if (done != 0) return;
    if (std::chrono::steady_clock::now() > deadline) {
      end_job(fmt::format("rank {}: ended with code {}, while other ranks go on", own_rank.load(),
                          result),
              (result & 255) == 0 ? 1 : result);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

int run(int argc, char** argv, const std::function<int(World&)>& body) {
  // The world outlives the handlers: nothing of it is torn down before the job has been told.
  World world;
  try {
    world = init(argc, argv);
    const int result = body(world);
    if (result != 0) end_unless_all_end(result);
    finish(world);
    return result;
  } catch (const InputError& error) {
    end_with_input_error(error.what());
  } catch (const std::exception& error) {
    end_with_error(error.what());
  } catch (...) {
    end_with_error("an exception that is no std::exception");
  }
}

void fail_job(const std::string& text, const std::function<void()>& last) {
  end_with_error(text, last);
}

void set_running_step(int64_t step) { running_step = step; }

void set_finished_step(int64_t step) { finished_step = step; }

}  // namespace tessera::dist
