// Starts a training program under mpirun. If a rank dies or hangs, starts the program again from
// its last checkpoint without that rank:
//
//   relaunch -n 4 --min-ranks 2 --restarts 10 -- train_gpt --data text.txt --checkpoint runs/a
//
// relaunch links no MPI. mpirun starts a process `relaunch --as-rank` for each rank. This process
// starts the program and reports how the program ended (apps/relaunch/rank_parent.h).
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "apps/console/console.h"
#include "apps/relaunch/job.h"
#include "apps/relaunch/rank_parent.h"
#include "apps/relaunch_options.h"
#include "core/error.h"
#include "core/text/number_text.h"

namespace tessera::apps {
namespace {

constexpr const char* as_rank = "--as-rank";
// Follows as_rank, and is followed by the number of threads of the rank's program.
constexpr const char* with_threads = "--with-threads";

std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  TESSERA_CHECK(length > 0, "relaunch: /proc/self/exe cannot be read");
  path.resize(static_cast<size_t>(length));
  return path;
}

// Says when a rank was lost. The text names the last finished step instead of the next step,
// because a rank can be lost after the run's last step.
std::string when(int64_t finished_steps) {
  return finished_steps == 0 ? "before it finished a step"
                             : fmt::format("after step {}", finished_steps);
}

/// Starts job after job until the run is finished or must end.
class Relaunch {
 public:
  explicit Relaunch(const RelaunchOptions& options)
      : options_(options), ranks_(options.ranks), hosts_(options.hosts) {
    // Without this call, the run would end when the reader of this program's output exits.
    ::signal(SIGPIPE, SIG_IGN);
  }

  /// Returns the exit code.
  int run() {
    warn_without_checkpoints();
    for (int restart = 0;; ++restart) {
      const JobEnd job = run_one_job(command(), ranks_, signals_, asked_);
      keep_threads(job);
      const Verdict verdict = judge(job);
      if (verdict.kind == Verdict::Kind::finished) return 0;
      if (asked_.to_interrupt || signals_.pending(SIGINT)) return 128 + SIGINT;
      const std::string why = take_away(verdict);
      const std::string reason = reason_to_end(verdict, restart);
      if (!reason.empty()) {
        say(fmt::format("{}; {}", why, reason));
        return job.code;
      }
      say(fmt::format("{}; starting again with {} (restart {} of {})", why, counted(ranks_, "rank"),
                      restart + 1, options_.restarts));
    }
  }

 private:
  std::vector<std::string> command() const {
    std::vector<std::string> words = options_.mpirun;
    words.insert(words.end(), {"-n", std::to_string(ranks_)});
    if (!hosts_.empty()) words.insert(words.end(), {"--host", hosts_text(hosts_)});
    words.insert(words.end(), {path_, as_rank});
    if (threads_ > 0) words.insert(words.end(), {with_threads, std::to_string(threads_)});
    words.insert(words.end(), options_.command.begin(), options_.command.end());
    return words;
  }

  // Remembers the number of threads of a rank in the first job that has set it. The bits of the run
  // depend on this number. Without a checkpoint that records it, and without --threads, the ranks
  // of a later job would share the cores of lost ranks, and so have more threads.
  void keep_threads(const JobEnd& job) {
    for (const RankRecord& record : job.records) {
      if (threads_ == 0) threads_ = record.status.threads;
    }
  }

  void warn_without_checkpoints() const {
    for (const std::string& word : options_.command) {
      const std::string flag = word.substr(0, word.find('='));
      if (flag == "--checkpoint" || flag == "--config") return;
    }
    say("the command has no --checkpoint, so a restart begins at the first step");
  }

  // Removes the lost ranks from the next job. Returns a text that says why the judged job ended.
  std::string take_away(const Verdict& verdict) {
    if (verdict.kind == Verdict::Kind::stalled) remember(-1, verdict.finished_steps, 0);
    if (verdict.kind != Verdict::Kind::lost_ranks) return verdict.why;
    std::vector<size_t> places;
    std::vector<std::string> texts;
    for (const LostRank& rank : verdict.lost) {
      std::string place;
      if (!hosts_.empty()) {
        places.push_back(host_of(hosts_, rank.rank, rank.host));
        place = " on " + hosts_[places.back()].name;
      }
      texts.push_back(
          fmt::format("rank {}{} {} {}", rank.rank, place, rank.why, when(rank.finished_steps)));
      remember(rank.rank, rank.finished_steps, rank.signal);
    }
    ranks_ -= static_cast<int>(std::ssize(verdict.lost));
    hosts_ = without_places(hosts_, places);
    return fmt::format("{}", fmt::join(texts, ", "));
  }

  void remember(int rank, int64_t finished_steps, int signal) {
    if (!seen_.insert({rank, finished_steps, signal}).second) comes_again_ = true;
  }

  // Returns the reason not to start the job again; empty if the job is started again.
  std::string reason_to_end(const Verdict& verdict, int restart) const {
    if (asked_.to_stop) return "the run was told to end";
    if (verdict.kind == Verdict::Kind::failed)
      return "a restart would fail in the same way, so the run ends";
    if (comes_again_) return "the same failure came before, at the same step, so the run ends";
    if (ranks_ < options_.min_ranks) {
      return fmt::format("{} {} left, expected at least {} (--min-ranks)", counted(ranks_, "rank"),
                         ranks_ == 1 ? "is" : "are", options_.min_ranks);
    }
    if (restart >= options_.restarts) {
      return fmt::format("it was started again {} (--restarts)", counted(restart, "time"));
    }
    return "";
  }

  const RelaunchOptions& options_;
  const std::string path_ = own_path();
  int ranks_;
  std::vector<Host> hosts_;
  int threads_ = 0;  // of each rank; 0: not known yet
  SignalQueue signals_{{SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2}};
  Asked asked_;
  // For each lost rank so far: the rank, the number of its finished steps, and the signal that
  // killed it, or 0. Rank -1 stands for a stall that no rank is known to have caused.
  std::set<std::tuple<int, int64_t, int>> seen_;
  bool comes_again_ = false;
};

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  return apps::run_tool([&] {
    if (argc > 2 && argv[1] == std::string(apps::as_rank)) {
      const bool given = argc > 4 && argv[2] == std::string(apps::with_threads);
      if (given) ::setenv("OMP_NUM_THREADS", argv[3], 1);
      return apps::run_as_rank({argv + (given ? 4 : 2), argv + argc});
    }
    const auto [options, help] = apps::parse_relaunch_command_line(argc, argv);
    if (!help.empty()) {
      fmt::print("{}", help);
      return 0;
    }
    return apps::Relaunch(options).run();
  });
}
