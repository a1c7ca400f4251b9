#include "apps/relaunch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "apps/relaunch/record_socket.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

bool line_open = false;  // true if the last text written had no newline at its end

void write_text(std::string_view text) {
  if (!text.empty()) line_open = text.back() != '\n';
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the reader is gone
    text.remove_prefix(static_cast<size_t>(written));
  }
}

class RunningJob {
 public:
  RunningJob(const std::vector<std::string>& command, int ranks, SignalQueue& signals, Asked& asked)
      : signals_(signals), asked_(asked) {
    end_.ranks = ranks;
    std::array<int, 2> ends{};
    TESSERA_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe: {}", std::strerror(errno));
    output_ = ends[0];
    ::fcntl(output_, F_SETFL, O_NONBLOCK);
    try {
      process_ =
          start_process(command, signals, {.death_signal = SIGTERM, .error_output = ends[1]});
    } catch (...) {
      ::close(ends[0]);
      ::close(ends[1]);
      throw;
    }
    ::close(ends[1]);
    interrupted_early_ = signals.pending(SIGINT);
  }
  ~RunningJob() { ::close(output_); }
  RunningJob(const RunningJob&) = delete;
  RunningJob& operator=(const RunningJob&) = delete;

  JobEnd wait() {
    int status = 0;
    for (pid_t ended = 0;;) {
      ended = ::waitpid(process_, &status, WNOHANG);
      TESSERA_CHECK(ended >= 0, "waitpid: {}", std::strerror(errno));
      alive_ = ended == 0;
      if (!alive_) break;
      take_news();
      pass_signals_on();
      end_hanging_launcher();
    }
    if (WIFSIGNALED(status)) await_rank_parents();
    read_output();
    read_records();
    filter_.finish();
    end_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status) && !end_.hung) end_.launcher_signal = WTERMSIG(status);
    return std::move(end_);
  }

 private:
  // Waits a moment for output, records or signals, and handles them.
  void take_news() {
    constexpr int soon_ms = 50;
    std::array<pollfd, 3> ready{{{.fd = open_ ? output_ : -1, .events = POLLIN, .revents = 0},
                                 {.fd = records_.descriptor(), .events = POLLIN, .revents = 0},
                                 {.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}}};
    ::poll(ready.data(), ready.size(), soon_ms);
    read_output();
    read_records();
    take_signals();
  }

  void signal_launcher(int signal) const {
    if (alive_) ::kill(process_, signal);
  }

  void read_output() {
    std::array<char, 1 << 16> bytes{};
    // The limit lets the caller handle signals and records even if the ranks print without a pause.
    // After mpirun has ended, all of the remaining output is read.
    constexpr int most_reads = 16;
    for (int reads = 0; open_ && (reads < most_reads || !alive_); ++reads) {
      const ssize_t count = ::read(output_, bytes.data(), bytes.size());
      if (count > 0) {
        filter_.feed({bytes.data(), static_cast<size_t>(count)});
      } else if (count == 0) {
        open_ = false;
      } else if (errno != EINTR) {
        return;
      }
    }
  }

  void read_records() {
    for (std::string text = records_.next(); !text.empty(); text = records_.next()) {
      const auto record = parse_record(text);
      if (!record) continue;
      here_.insert(record->rank);
      filter_.take(*record);
    }
  }

  // After a signal ended mpirun, waits until the ranks on this host have ended too, but no longer
  // than `patience`. Without the wait, ranks could write to the run's files while the next job
  // runs, and judge() (verdict.h) would count ranks whose end is not reported yet as silent. A rank
  // whose start was not reported yet is not in here_. A wait of `least` is enough for such a rank,
  // because its parent checks every second whether mpirun still runs.
  void await_rank_parents() {
    constexpr std::chrono::milliseconds least(1500);
    constexpr std::chrono::seconds patience(10);
    const auto begin = Clock::now();
    for (Clock::duration waited{}; waited < least || (living_here() && waited < patience);
         waited = Clock::now() - begin) {
      take_news();
    }
  }

  bool living_here() const { return !std::ranges::includes(ended_, here_); }

  void take_signals() {
    for (auto signal = signals_.next(); signal.number != 0; signal = signals_.next()) {
      if (signal.number == SIGUSR1) waiting_.push_back(SIGUSR1);
      if (signal.number == SIGUSR2 || signal.number == SIGTERM) {
        asked_.to_stop = true;
        if (!told_) told_ = Clock::now();
        waiting_.push_back(SIGUSR2);
      }
      if (signal.number == SIGINT) {
        asked_.to_interrupt = true;
        // Ctrl-C in a terminal reaches mpirun directly, if mpirun has started. A second SIGINT
        // would make mpirun exit at once, without ending its ranks.
        const bool reached_launcher = signal.of_terminal && !interrupted_early_;
        if (!reached_launcher) signal_launcher(SIGINT);
        interrupted_early_ = false;
      }
    }
  }

  // Forwards the waiting signals to mpirun. mpirun can pass signals to ranks only after all ranks
  // have started. If the run is told to end and its ranks do not start in time, for instance
  // because a host does not answer, this function terminates mpirun. No work is lost, because
  // training begins only when all ranks have started.
  void pass_signals_on() {
    constexpr std::chrono::seconds patience(15);
    if (begun_ == end_.ranks) {
      for (const int signal : waiting_) signal_launcher(signal);
      waiting_.clear();
    } else if (told_ && !died_ && Clock::now() - *told_ > patience) {
      died_ = Clock::now();
      signal_launcher(SIGTERM);
    }
  }

  // When a rank dies, mpirun ends the other ranks and itself in about a second. But if a host does
  // not answer, mpirun waits for the host forever. So this function kills mpirun if it still runs
  // `patience` after `died_`. The rank parents on mpirun's own host (rank_parent.h) then notice
  // that mpirun is gone, and end their ranks.
  void end_hanging_launcher() {
    constexpr std::chrono::seconds patience(6);
    if (!died_ || Clock::now() - *died_ <= patience) return;
    end_.hung = true;
    signal_launcher(SIGKILL);
  }

  void take(const RankRecord& record) {
    if (record.event == RankRecord::Event::started) ++begun_;
    if (record.event == RankRecord::Event::ended) ended_.insert(record.rank);
    const bool died =
        record.event == RankRecord::Event::ended && (record.signal != 0 || record.code != 0);
    if (died && !died_) died_ = Clock::now();
    end_.records.push_back(record);
  }

  using Clock = std::chrono::steady_clock;
  SignalQueue& signals_;
  Asked& asked_;
  RecordSocket records_;  // made before mpirun starts, so that mpirun inherits the socket's name
  std::set<int> here_;    // ranks that report over the socket, and therefore run on this host
  std::set<int> ended_;   // ranks on any host that have reported their end
  JobEnd end_;
  std::optional<Clock::time_point> told_;  // when this process was told to end the run
  // When the first death of a rank became known, or when mpirun was told to end because the ranks
  // did not start in time.
  std::optional<Clock::time_point> died_;
  pid_t process_ = -1;
  bool alive_ = true;  // false once waitpid reports mpirun's end: its process id may be reused then
  int output_ = -1;
  bool open_ = true;
  bool interrupted_early_ = false;  // SIGINT came before mpirun had started
  int begun_ = 0;  // number of ranks that have started
  std::vector<int> waiting_;
  RecordFilter filter_{write_text, [this](const RankRecord& record) { take(record); }};
};

}  // namespace

void say(const std::string& text) {
  write_text(fmt::format("{}relaunch: {}\n", line_open ? "\n" : "", text));
}

JobEnd run_one_job(const std::vector<std::string>& command, int ranks, SignalQueue& signals,
                   Asked& asked) {
  return RunningJob(command, ranks, signals, asked).wait();
}

}  // namespace tessera::apps
