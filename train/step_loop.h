// The steps of a training run: each is launched, logged and shown; now and then the model is
// evaluated. What is trained on what, the caller says.
//
//   auto log = train::begin_run({.log = "run.jsonl"}, world);
//   train::StepLoop loop(run.loop, world, optimizer, *log,
//                        {.unit = "tokens",
//                         .units_per_step = 12 * 64,
//                         .forward = [&](const MicroBatch& micro) { ... return loss; },
//                         .evaluate = [&](int64_t done) { ... }});
//   loop.train();
//   train::report_run(plan, loop.count(), world, *log);
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/report/progress.h"
#include "train/report/run_log.h"
#include "train/report/run_report.h"
#include "train/training_run.h"
#include "train/weight_saves.h"

namespace tessera::train {

struct StepWork {
  std::string unit = {};  // what speed counts
  int64_t units_per_step = 0;
  /// The mean loss of any micro-batch, which is read for it. A loss that is not finite is looked
  /// for with it, on every rank alike.
  std::function<Tensor(const MicroBatch&)> forward = nullptr;
  /// In place of `forward` in steps, both or neither: `load` brings a micro-batch's values to where
  /// `loss` reads them, as graphs want it, and as suits data that is read ahead.
  std::function<void(const MicroBatch&)> load = nullptr;
  std::function<Tensor()> loss = nullptr;
  /// Evaluates after so many steps: a line of the log, and what the terminal shows.
  struct Evaluation {
    JsonObject line;
    std::string text;
    /// What the best evaluation is chosen by, where LoopOptions::weights asks for it: the same on
    /// every rank.
    std::optional<Score> score = std::nullopt;
  };
  std::function<Evaluation(int64_t)> evaluate = nullptr;
  /// Opens a file of the weights, where LoopOptions::weights asks for some.
  WeightSaves::Open open_weights = nullptr;
  /// More members for a step's line of the log; asked when the step is launched.
  std::function<JsonObject(int64_t)> describe = [](int64_t) { return JsonObject(); };
  /// What checkpoints say of the run, and on what its bits depend besides (manifest.h).
  dist::Settings run = {};
  dist::Settings bits = {};
  /// Metadata of a file of the model's weights, so that a checkpoint can be exported as one.
  std::map<std::string, std::string> weights = {};
};

/// Files that a run writes; without a path one is not written.
struct RunFiles {
  std::string log = {};    // JSON lines (run_log.h)
  std::string trace = {};  // of all ranks (trace_file.h)
  std::string save = {};   // what the caller saves at the end
  /// Where the log is that of the run so far: steps that were done (run_log.h).
  std::optional<int64_t> finished = std::nullopt;
};
/// Begins a run, before it holds anything. First all that the run writes must be writable, and no
/// rank have bad input; only then the log, which is open on rank 0, replaces an older one. Memory
/// and traffic are counted from here on. Throws InputError. Collective.
std::unique_ptr<RunLog> begin_run(const RunFiles& files, const dist::World& world);

class StepLoop {
 public:
  /// World, optimizer and log must outlive it. Throws where `work` lacks what the options ask for.
  StepLoop(const LoopOptions& options, const dist::World& world, optim::ZeroOptimizer& optimizer,
           RunLog& log, StepWork work);
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  /// All steps from first_step on, or up to the one after which a signal ends the run. Throws on
  /// every rank where a loss or gradient is not finite, or the last checkpoint cannot be written.
  /// Collective.
  void train();
  /// The steps that this process has done.
  const StepCount& count() const { return count_; }
  /// Whether a signal has ended the run before its last step.
  bool stopped() const { return stopped_; }

 private:
  using Clock = std::chrono::steady_clock;
  // A step whose result is not asked for yet.
  struct Running {
    int64_t step;
    Clock::time_point begin;
    optim::LaunchedStep launched;
    Clock::time_point launch_end;
    JsonObject description;
    int64_t checkpoint_wait_ns;
  };

  int64_t run_steps();
  void evaluate(int64_t done);
  int64_t skipped() const { return options_.skipped + count_.skipped; }
  void launch(int64_t step);
  void log_running();
  StepLine line_of(Running& running);
  [[noreturn]] void fail_together(int64_t step, const optim::NonFiniteError& error);

  LoopOptions options_;
  const dist::World& world_;
  optim::ZeroOptimizer& optimizer_;
  RunLog& log_;
  StepWork work_;
  MicroBatch loaded_;  // where `forward` stands for `load` and `loss`
  Progress progress_;
  std::optional<Running> running_;
  Clock::time_point last_end_;
  StepCount count_;
  bool stopped_ = false;
  std::unique_ptr<WeightSaves> saves_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
};

/// What ranks held and sent, beside what was planned: a line of the log, and tables on rank 0's
/// standard output, before which `before_tables` is called on every rank. Collective.
void report_run(
    const optim::Plan& planned, const StepCount& count, const dist::World& world, RunLog& log,
    const std::function<void()>& before_tables = [] {});

}  // namespace tessera::train
