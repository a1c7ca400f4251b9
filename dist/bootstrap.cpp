// Starting and ending a rank. Two rules: MPI_Finalize is called only when all went well, because a
// rank that finalizes while others wait in a collective hangs the job for ever; and whoever fails
// says so and calls MPI_Abort, which ends the others at once.
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

#include "dist/mpi/mpi_check.h"

namespace tessera::dist {

namespace {

// What the handler of SIGTERM reads; lock-free, so that it may.
std::atomic<int> own_rank{0};
std::atomic<int64_t> running_step{-1};
std::atomic<int64_t> finished_step{-1};
std::atomic<bool> said_last_words{false};
std::atomic_flag ending;
static_assert(std::atomic<int64_t>::is_always_lock_free);

bool started_by_launcher() {
  // Open MPI, MPICH and Intel MPI, PMIx (prterun, srun --mpi=pmix).
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
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
  return world;
}

void finish(World& world) {
  if (mpi_runs()) {
    // This rank waits for the others to have nothing more to send.
    world.communicator->barrier();
    world.communicator.reset();
    MPI_Finalize();
  }
  std::fflush(stdout);
}

int run(int argc, char** argv, const std::function<int(World&)>& body) {
  // The world outlives the handlers: nothing of it is torn down before the job has been told.
  World world;
  try {
    world = init(argc, argv);
    const int result = body(world);
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
