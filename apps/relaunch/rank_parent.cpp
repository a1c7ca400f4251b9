#include "apps/relaunch/rank_parent.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "apps/relaunch/processes.h"
#include "apps/relaunch/rank_record.h"
#include "apps/relaunch/record_socket.h"
#include "core/awake_time.h"
#include "core/error.h"
#include "core/run_status.h"

namespace tessera::apps {
namespace {

// Reads this process's rank from the environment variables of Open MPI, PMIx, MPICH and Slurm.
int own_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* const text = std::getenv(variable);
    if (text == nullptr) continue;
    int rank = -1;
    const std::string_view view = text;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), rank);
    if (error == std::errc() && end == view.data() + view.size()) return rank;
  }
  fail("relaunch: the launcher does not say which rank this process is");
}

// Writes a record several times, because mpirun may split a line and put another rank's output in
// between. RecordFilter drops repeated records.
void report(const RankRecord& record, const RecordSender& sender) {
  const std::string text = record_text(record);
  bool sent = false;
  for (int i = 0; i < 3; ++i) {
    if (!sent) sent = sender.send(text);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Passes on the waiting signals for which the program has installed a handler by now. Other signals
// keep waiting, because a request for a checkpoint must not kill a program that is still starting.
// Returns true if no signal is left to pass on.
bool pass_on(pid_t child, std::vector<int>& waiting) {
  std::erase_if(waiting, [child](int signal) {
    return handles_signal(child, signal) && ::kill(child, signal) == 0;
  });
  return waiting.empty();
}

/// Ends a program that was told by SIGUSR2 to save and end, but never handles this signal.
class LastResort {
 public:
  LastResort(pid_t child, int rank) : child_(child), rank_(rank) {}

  /// Must be called several times a second while SIGUSR2 waits to be passed on (`waits` is true),
  /// and at least once a second otherwise. A program that once had a handler for SIGUSR2 is left
  /// alone. If the handler is gone, the program is about to end, and may still be writing its
  /// results.
  void look(bool waits) {
    has_handled_ = has_handled_ || handles_signal(child_, SIGUSR2);
    if (!waits || has_handled_) {
      waited_ = {};
      return;
    }
    waited_.look();
    if (sent_ == 0 && waited_.seconds() > patience_s) send(SIGTERM, patience_s);
    if (sent_ == SIGTERM && waited_.seconds() > last_patience_s) send(SIGKILL, last_patience_s);
  }

  /// Must be called when the child has ended. The child may be a wrapper, and the program that the
  /// wrapper started may still run. So if this object has sent SIGTERM, waits until all processes
  /// of the child's process group have ended. Kills the process group `last_patience_s` seconds
  /// after SIGUSR2 came.
  void await_group() {
    while (sent_ == SIGTERM && ::kill(-child_, 0) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      waited_.look();
      if (waited_.seconds() > last_patience_s) send(SIGKILL, last_patience_s);
    }
  }

 private:
  static constexpr int patience_s = 60;
  static constexpr int last_patience_s = 70;

  // Signals the child's process group, because the child may be a wrapper that has started the
  // program.
  void send(int signal, int after_s) {
    sent_ = signal;
    std::fputs(fmt::format("relaunch: rank {} has not handled SIGUSR2 in {} s and gets {}\n", rank_,
                           after_s, signal_name(signal))
                   .c_str(),
               stderr);
    ::kill(-child_, signal);
  }

  const pid_t child_;
  const int rank_;
  bool has_handled_ = false;
  AwakeTime waited_;  // since SIGUSR2 began to wait
  int sent_ = 0;      // the last signal sent
};

// Must be called when the child has ended. If the child was a wrapper, the program that the wrapper
// started may still run and hold the lock on the folder of checkpoints. A restart would then be
// refused. Waits until `deadline` for the processes of the child's process group to end, and then
// kills those that still run.
void end_group(pid_t child, std::chrono::steady_clock::time_point deadline) {
  const auto await_end = [child](std::chrono::steady_clock::time_point limit) {
    while (::kill(-child, 0) == 0 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  await_end(deadline);
  if (::kill(-child, SIGKILL) != 0) return;
  // A killed process holds its locks until the kernel has taken it down. The wait is short, because
  // this process must report how the child ended before mpirun kills this process.
  await_end(std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
}

// Returns the child's exit code. If a signal ended the child, ends this process by the same signal.
int end_as(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  ::setrlimit(RLIMIT_CORE, &no_core);  // a core file of the child is enough
  ::signal(WTERMSIG(status), SIG_DFL);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  ::raise(WTERMSIG(status));
  return 128 + WTERMSIG(status);
}

/// Tracks whether a child has ended or is stopped.
class ChildState {
 public:
  explicit ChildState(pid_t child) : child_(child) {}

  void update() {
    int status = 0;
    while (!ended_ && ::waitpid(child_, &status, WNOHANG | WUNTRACED | WCONTINUED) == child_) {
      ended_ = WIFEXITED(status) || WIFSIGNALED(status);
      if (ended_) status_ = status;
      if (WIFSTOPPED(status)) stopped_ = true;
      if (!WIFCONTINUED(status)) continue;
      stopped_ = false;
      continued_ = true;
      when_continued_ = Clock::now();
    }
  }
  bool ended() const { return ended_; }
  int status() const { return status_; }
  /// True if the child is stopped, or was continued less than a second ago. mpirun continues
  /// stopped processes before it ends them, so a child that was just continued counts as stopped.
  bool was_stopped() const {
    return stopped_ || (continued_ && Clock::now() - when_continued_ < std::chrono::seconds(1));
  }

 private:
  using Clock = std::chrono::steady_clock;
  pid_t child_;
  bool ended_ = false;
  bool stopped_ = false;
  int status_ = 0;
  bool continued_ = false;
  Clock::time_point when_continued_{};
};

}  // namespace

int run_as_rank(const std::vector<std::string>& command) {
  const pid_t launcher = ::getppid();
  const RunStatusFile file;
  ::setenv(run_status_variable, file.number().c_str(), 1);
  RankRecord record{.rank = own_rank(), .host = host_name()};
  const RecordSender sender;
  SignalQueue signals({SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2});
  // mpirun sends signals to process groups. The child has its own group, so that a request for a
  // checkpoint reaches only this process. pass_on forwards the request once the child handles it.
  const pid_t child = start_process(command, signals, {.death_signal = SIGKILL, .own_group = true});
  // If mpirun has crashed, standard error has no reader, and SIGPIPE would end this process. The
  // child is already running, so it keeps the default action.
  ::signal(SIGPIPE, SIG_IGN);
  report(record, sender);

  std::vector<int> waiting;
  ChildState state(child);
  // end_group waits until this time before it kills what is left of the child's group. The time is
  // 0.3 s after mpirun's SIGTERM, because mpirun kills this process a second after SIGTERM, and
  // this process may run late on a busy machine. Before a SIGTERM, `deadline` is in the past.
  std::chrono::steady_clock::time_point deadline;
  LastResort last_resort(child, record.rank);
  while (!state.ended()) {
    constexpr int soon_ms = 20;
    constexpr int a_second_ms = 1000;
    pollfd ready{.fd = signals.descriptor(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, pass_on(child, waiting) ? a_second_ms : soon_ms);
    // If the launcher is gone, nobody else ends the child, or a program that the child started.
    if (::getppid() != launcher) ::kill(-child, SIGKILL);
    // Reads the child's state before the signals. Otherwise a child that died before SIGTERM
    // arrived would be recorded as told to end.
    state.update();
    for (int signal = signals.next().number; signal != 0; signal = signals.next().number) {
      if (signal == SIGUSR1 || signal == SIGUSR2) waiting.push_back(signal);
      if (signal != SIGTERM || state.ended() || record.was_told) continue;
      record.was_told = true;
      record.event = RankRecord::Event::told;
      record.stopped = state.was_stopped();
      record.status = file.read();
      deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
      report(record, sender);
      ::kill(-child, SIGTERM);
    }
    if (!state.ended()) last_resort.look(std::ranges::count(waiting, SIGUSR2) > 0);
  }
  if (!record.was_told) last_resort.await_group();
  // If a signal killed the child and the child was a wrapper, its program may run on without it.
  // Without a SIGTERM, `deadline` is in the past, so end_group kills the program immediately.
  if (record.was_told || WIFSIGNALED(state.status())) end_group(child, deadline);
  record.event = RankRecord::Event::ended;
  record.status = file.read();
  // If mpirun is gone, this process or MPI may have ended the child. So its end does not count as a
  // failure of this rank.
  if (::getppid() != launcher) record.was_told = true;
  set_end(record, state.status());
  report(record, sender);
  return end_as(state.status());
}

}  // namespace tessera::apps
