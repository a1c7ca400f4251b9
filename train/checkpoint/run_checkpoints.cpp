#include "train/checkpoint/run_checkpoints.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <utility>

#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/text/error_text.h"
#include "core/trace.h"
#include "dist/bootstrap.h"
#include "dist/communicator.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr uint8_t save_note = 1;
constexpr uint8_t stop_note = 2;
constexpr uint8_t busy_note = 4;

// The save and stop notes that signals have set. The atomic must be lock-free, because signal
// handlers write it.
std::atomic<uint8_t> asked{0};
static_assert(std::atomic<uint8_t>::is_always_lock_free);

std::atomic<bool> interrupted{false};  // SIGINT has asked for the end of a run
struct sigaction before_interrupt;     // the previous handler of SIGINT
std::atomic<bool> hung_up{false};      // SIGHUP has asked for the end of a run
std::atomic<bool> early{false};        // an EarlySignals handles signals; no RunCheckpoints yet
std::atomic<bool> early_end{false};    // SIGTERM has come while `early` was set

void ask(int signal) {
  const int error = errno;  // restored below, because the interrupted code may read errno
  asked |= signal == SIGUSR1 ? save_note : stop_note;
  if (signal == SIGHUP) hung_up = true;
  if (signal == SIGTERM) {
    if (early) early_end = true;
    // mpirun sends SIGTERM if another rank has died. The running step then never ends, and mpirun
    // kills this rank a second later. So the last finished step is printed now.
    dist::say_last_words();
  }
  if (signal == SIGINT) {
    interrupted = true;
    sigaction(SIGINT, &before_interrupt, nullptr);  // a second Ctrl-C does not wait for the step
    const std::string_view text = early
                                      ? "\nsaving after the first step; Ctrl-C again ends at once\n"
                                      : "\nsaving after this step; Ctrl-C again ends at once\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  }
  errno = error;
}

/// Handles SIGUSR1, SIGUSR2, SIGTERM, SIGHUP and SIGINT, with these exceptions:
///   - A SIGHUP or SIGINT that the process ignores stays ignored. Under nohup the process ignores
///     SIGHUP. A background job of a shell script ignores SIGINT.
///   - If an earlier SIGINT has interrupted a run, SIGINT keeps its previous handler.
/// The destructor restores the previous handlers. But if SIGUSR1 or SIGUSR2 had none, the process
/// ignores the signal from then on. The same holds for SIGHUP if a SIGHUP has come. Only one object
/// may exist at a time.
class Signals {
 public:
  Signals() {
    asked = 0;
    struct sigaction action {};
    action.sa_handler = ask;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < numbers.size(); ++i) {
      sigaction(numbers[i], nullptr, &before_[i]);
      const bool keeps = numbers[i] == SIGHUP && before_[i].sa_handler == SIG_IGN;
      if (!keeps) sigaction(numbers[i], &action, nullptr);
    }
    sigaction(SIGINT, nullptr, &before_interrupt);
    const bool handles = before_interrupt.sa_handler != SIG_IGN && !interrupted;
    if (handles) sigaction(SIGINT, &action, nullptr);
  }
  ~Signals() {
    sigaction(SIGINT, &before_interrupt, nullptr);
    for (size_t i = 0; i < numbers.size(); ++i) {
      // After its last step a run still reports and saves its weights. Without a handler, a late
      // SIGUSR1 or SIGUSR2 would end the process before that. So would a second SIGHUP: when a
      // terminal is closed, the kernel and the shell may both send one.
      const bool late = numbers[i] == SIGHUP ? hung_up.load() : numbers[i] != SIGTERM;
      if (late && before_[i].sa_handler == SIG_DFL) before_[i].sa_handler = SIG_IGN;
      sigaction(numbers[i], &before_[i], nullptr);
    }
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr std::array numbers{SIGUSR1, SIGUSR2, SIGTERM, SIGHUP};
  std::array<struct sigaction, numbers.size()> before_{};
};
std::unique_ptr<Signals> signals;

}  // namespace

bool was_interrupted() { return interrupted; }

EarlySignals::EarlySignals(bool wanted) : wanted_(wanted) {
  if (!wanted) return;
  early = true;  // set before the handlers are installed, because they read it
  early_end = false;
  signals = std::make_unique<Signals>();
}

EarlySignals::~EarlySignals() {
  if (!wanted_) return;
  const bool told = early && early_end && std::uncaught_exceptions() > 0;
  end();
  if (told) ::raise(SIGTERM);
}

void EarlySignals::end() {
  signals.reset();
  early = false;
}

RunCheckpoints::RunCheckpoints(CheckpointOptions options, const dist::World& world,
                               optim::ZeroOptimizer& optimizer, RunLog& log, CheckpointInfo info)
    : options_(std::move(options)),
      world_(world),
      optimizer_(optimizer),
      log_(log),
      info_(std::move(info)),
      saved_step_(options_.saved_step) {
  TESSERA_CHECK(options_.keep >= 1,
                "checkpoints: {} of the newest ones are to be kept, expected at least 1",
                options_.keep);
  // The copy is allocated before the first step, so that a lack of memory shows at the start.
  if (options_.staged()) {
    copy_ = StateCopy(options_, optimizer_.own_state_pieces(), optimizer_.options().offload);
  }
  // The handlers are set last. If the constructor threw after that, no destructor would restore the
  // previous handlers.
  early = false;
  // Keeps the Signals of an EarlySignals, because a new object would forget the handled signals.
  if (!signals) signals = std::make_unique<Signals>();
}

RunCheckpoints::~RunCheckpoints() {
  // The thread uses this object, so the thread must end first.
  join();
  signals.reset();
}

uint8_t RunCheckpoints::notes() const {
  return static_cast<uint8_t>(asked | (busy_ ? busy_note : 0));
}

bool RunCheckpoints::stops(uint8_t notes) { return (notes & stop_note) != 0; }

bool RunCheckpoints::saves(int64_t done, uint8_t notes) const {
  return (options_.every > 0 && done % options_.every == 0) || (notes & save_note) != 0;
}

void RunCheckpoints::after_step(int64_t done, int64_t skipped, uint8_t notes) {
  // advance() is collective, so all ranks must call it after the same step. All ranks see the same
  // notes, and call advance() after the first step whose notes report no busy thread.
  if (phase_ != Phase::idle && (notes & busy_note) == 0) advance();
  if (!saves(done, notes)) return;
  const bool asked_for = (notes & save_note) != 0;
  // Clears this rank's save note if a checkpoint starts below, or if a requested checkpoint is
  // skipped with a warning. If only a scheduled checkpoint is skipped, the save note of a late
  // signal stays and is sent in the next step. A signal is late if it came after this rank had sent
  // its notes for this step.
  if (phase_ == Phase::idle || asked_for) asked &= static_cast<uint8_t>(~save_note);
  // There is one copy and one thread, so only one checkpoint is written at a time.
  if (phase_ != Phase::idle) return skip(done, asked_for);
  info_.step = done;
  info_.skipped = skipped;
  start(info_);
  if (options_.async) return;
  while (phase_ != Phase::idle) advance();
}

void RunCheckpoints::skip(int64_t done, bool asked_for) {
  log_.write(JsonObject()
                 .add("type", "checkpoint")
                 .add("step", done)
                 .add("skipped", true)
                 .add("writing", writing_.step));
  ++not_written_;
  // Warns of every skipped checkpoint that a signal has asked for. Warns of only the first skipped
  // scheduled checkpoint, because on a slow disk many are skipped.
  if (!asked_for && std::exchange(warned_, true)) return;
  spdlog::warn(
      "the checkpoint of step {} is skipped, because that of step {} is still being written{}",
      done, writing_.step, asked_for ? "" : "; others like it are counted when the run ends");
}

std::string RunCheckpoints::finish(int64_t done, int64_t skipped) {
  // Completes a checkpoint that is still being written.
  while (phase_ != Phase::idle) advance();
  if (not_written_ > 0) {
    spdlog::info("{} of the run's checkpoints {} skipped, because another one was being written",
                 not_written_, not_written_ == 1 ? "was" : "were");
  }
  // This step may be saved already: by after_step, or by the earlier run that this run resumes.
  if (saved_step_ != done) {
    info_.step = done;
    info_.skipped = skipped;
    start(info_);
    while (phase_ != Phase::idle) advance();
  }
  if (!failure_.empty()) {
    throw LastCheckpointError(
        fmt::format("{}: the checkpoint of step {} {}", options_.folder, done, failure_));
  }
  return path(done);
}

std::string RunCheckpoints::path(int64_t step) const {
  return (fs::path(options_.folder) / checkpoint_name(step)).string();
}

std::vector<optim::StatePiece> RunCheckpoints::pieces_to_write() {
  // All copies are made here, between two updates, so that all of them belong to the same step.
  std::vector<optim::StatePiece> pieces = optimizer_.own_state_pieces();
  if (options_.staged()) return copy_.take(std::move(pieces));
  for (optim::StatePiece& piece : pieces) piece.values = piece.values.to_host();
  return pieces;
}

int64_t RunCheckpoints::wait_for_reads() {
  if (!reading_) return 0;
  const trace::Scope scope("checkpoint wait");
  const auto begin = std::chrono::steady_clock::now();
  reading_.wait(true);
  const auto waited = std::chrono::steady_clock::now() - begin;
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count();
  waited_ns_ += ns;
  return ns;
}

void RunCheckpoints::end_reading() {
  reading_ = false;
  reading_.notify_all();
}

void RunCheckpoints::start(const CheckpointInfo& info) {
  const trace::Scope scope("checkpoint");
  writing_ = info;
  phase_ = Phase::shards;
  waited_ns_ = 0;
  std::vector<optim::StatePiece> pieces = pieces_to_write();
  // The flag is set before the thread starts, because the thread clears it.
  reading_ = !std::ranges::all_of(pieces, &optim::StatePiece::is_copy);
  work([this, tensors = optimizer_.state_tensors(), pieces = std::move(pieces), step = info.step] {
    const std::string partial = make_partial_folder(options_.folder, step);
    shard_ = shard_text(write_shard(partial, shard_name(world_.rank, world_.size), pieces, tensors,
                                    [this] { end_reading(); }));
  });
}

void RunCheckpoints::advance() {
  // The thread may still be writing in two cases: finish() has called advance(), or `async` is
  // false. join() then waits for the disk.
  join();
  // Every rank learns of a failure on any rank, so that all ranks take the same branch.
  const std::string failure = dist::broadcast_text(
      *world_.communicator, first_failure(dist::gather_text(*world_.communicator, why_)));
  if (phase_ == Phase::manifest) {
    return conclude(failure, dist::broadcast_text(*world_.communicator, digest_));
  }
  if (!failure.empty()) return conclude(failure, "");
  const std::vector<std::string> shards = dist::gather_text(*world_.communicator, shard_);
  phase_ = Phase::manifest;
  // Rank 0 alone writes the manifest, because it has the shards of all ranks.
  if (world_.rank != 0) return;
  const Manifest manifest = manifest_of(shards, optimizer_, world_, writing_);
  work([this, manifest] {
    digest_.clear();
    try {
      commit_checkpoint(options_.folder, manifest);
    } catch (const UnflushedCheckpoint&) {
      digest_ = manifest.digest.text();
      throw;
    }
    digest_ = manifest.digest.text();
    // The new checkpoint is whole by now, so a failure to remove an old one is only a warning.
    try {
      prune_checkpoints(options_.folder, manifest.step, options_.keep, whole_later_);
    } catch (const std::exception& error) {
      spdlog::warn("an old checkpoint could not be removed: {}", error.what());
    }
  });
}

void RunCheckpoints::conclude(const std::string& failure, const std::string& digest) {
  phase_ = Phase::idle;
  why_.clear();
  if (!digest.empty()) placed_step_ = writing_.step;
  const char* const fate = placed_step_ == writing_.step ? not_safe : not_written;
  failure_ = failure.empty() ? "" : fmt::format("{}: {}", fate, failure);
  JsonObject line;
  line.add("type", "checkpoint").add("step", writing_.step);
  if (waited_ns_ > 0) line.add("wait_ms", std::round(static_cast<double>(waited_ns_) / 1e3) / 1e3);
  // The log has the digest of every checkpoint that may be resumed, because a resumed run is
  // compared with its log by digests.
  if (!digest.empty()) line.add("path", path(writing_.step)).add("digest", digest);
  if (failure.empty()) {
    saved_step_ = writing_.step;
    log_.write(line);
    return;
  }
  log_.write(line.add("failed", failure));
  spdlog::warn("{}: the checkpoint of step {} {}; earlier checkpoints are kept", options_.folder,
               writing_.step, failure_);
  // No rank is writing any more, so rank 0 can remove the shards of all ranks.
  std::error_code ignored;
  if (world_.rank == 0) fs::remove_all(partial_folder(options_.folder, writing_.step), ignored);
}

void RunCheckpoints::work(std::function<void()> body) {
  why_.clear();
  busy_ = true;
  thread_ = std::thread([this, body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      why_ = error_text(error);
    }
    end_reading();  // also after a failure, or the next update would wait forever
    busy_ = false;  // last, because the main thread may then join and read the results
  });
}

void RunCheckpoints::join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace tessera::train
