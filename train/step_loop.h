// The steps of a training run: each is launched, logged and shown; now and then the model is
// evaluated. The caller says which model is trained on which data.
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
  std::string unit = {};  // of the speed, such as "tokens"
  int64_t units_per_step = 0;
  /// Reads a micro-batch and returns its mean loss. Also called, on every rank, to find the
  /// operation where a loss became non-finite.
  std::function<Tensor(const MicroBatch&)> forward = nullptr;
  /// Used instead of `forward` in steps; set both or neither. `load` puts a micro-batch's values
  /// where `loss` reads them. Graphs need this, and it suits data that is read ahead.
  std::function<void(const MicroBatch&)> load = nullptr;
  std::function<Tensor()> loss = nullptr;
  /// The result of an evaluation: a line of the log, and a text for the terminal.
  struct Evaluation {
    JsonObject line;
    std::string text;
    /// The score by which the best evaluation is chosen, if LoopOptions::weights asks for it. The
    /// same on every rank.
    std::optional<Score> score = std::nullopt;
  };
  /// Evaluates the model after so many steps.
  std::function<Evaluation(int64_t)> evaluate = nullptr;
  /// Opens a file of the weights, if LoopOptions::weights asks for saves.
  WeightSaves::Open open_weights = nullptr;
  /// Returns more members for a step's line of the log; called when the step is launched.
  std::function<JsonObject(int64_t)> describe = [](int64_t) { return JsonObject(); };
  /// The settings of the run in checkpoints, and further settings that its bits depend on
  /// (manifest.h).
  dist::Settings run = {};
  dist::Settings bits = {};
  /// Metadata of a file of the model's weights, so that a checkpoint can be exported as one.
  std::map<std::string, std::string> weights = {};
};

/// Files that a run writes; a file without a path is not written.
struct RunFiles {
  std::string log = {};    // JSON lines (run_log.h)
  std::string trace = {};  // trace of all ranks (trace_file.h)
  std::string save = {};   // written by the caller at the end
  /// Set if the log of the run so far is continued: steps that were done (run_log.h).
  std::optional<int64_t> finished = std::nullopt;
};
/// Begins a run; called before it allocates anything. Checks that everything that the run writes
/// can be written and that no rank has bad input. Only then the log, which is open on rank 0,
/// replaces an older one. Memory and traffic are counted from here on. Throws InputError.
/// Collective.
std::unique_ptr<RunLog> begin_run(const RunFiles& files, const dist::World& world);

class StepLoop {
 public:
  /// World, optimizer and log must outlive it. Throws if `work` lacks what the options ask for.
  StepLoop(const LoopOptions& options, const dist::World& world, optim::ZeroOptimizer& optimizer,
           RunLog& log, StepWork work);
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  /// Runs all steps from first_step on, or until a signal ends the run after a step. Throws on
  /// every rank if a loss or gradient is not finite, or the last checkpoint cannot be written.
  /// Collective.
  void train();
  /// The steps that this process has done.
  const StepCount& count() const { return count_; }
  /// True if a signal has ended the run before its last step.
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
  MicroBatch loaded_;  // if `forward` stands in for `load` and `loss`
  Progress progress_;
  std::optional<Running> running_;
  Clock::time_point last_end_;
  StepCount count_;
  bool stopped_ = false;
  std::unique_ptr<WeightSaves> saves_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
};

/// Compares what ranks held and sent with the plan: writes a line of the log, and prints tables on
/// rank 0's standard output. Before the tables `before_tables` is called on every rank. Collective.
void report_run(
    const optim::Plan& planned, const StepCount& count, const dist::World& world, RunLog& log,
    const std::function<void()>& before_tables = [] {});

}  // namespace tessera::train
