// The loop of a training run: launches, logs and shows each step, evaluates the model at intervals,
// and saves weights and checkpoints. The caller provides model and data as functions (StepWork).
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

#include "core/error.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/report/progress.h"
#include "train/report/run_log.h"
#include "train/report/run_report.h"
#include "train/run_files.h"
#include "train/training_run.h"
#include "train/weight_saves.h"

namespace tessera::train {

struct StepWork {
  std::string unit = {};  // unit of the logged speed, such as "tokens"
  int64_t units_per_step = 0;
  /// Reads a micro-batch and returns its mean loss. Also called, on every rank, to find the
  /// operation where a loss became non-finite. The step is then over, and gradients are off: calls
  /// that need a running micro-batch, such as ZeroOptimizer::prefetch, throw, and end the search.
  std::function<Tensor(const MicroBatch&)> forward = nullptr;
  /// Set both `load` and `loss`, or neither. If they are set, steps call them instead of `forward`,
  /// which must be set in any case. `load` puts a micro-batch's data where `loss` reads the data.
  /// CUDA graphs require this separation. The separation also allows data to be read ahead.
  std::function<void(const MicroBatch&)> load = nullptr;
  std::function<Tensor()> loss = nullptr;
  /// The result of an evaluation: a line of the log, and a text for the terminal.
  struct Evaluation {
    JsonObject line;
    std::string text;
    /// The score by which the best evaluation is chosen, the same on every rank. Needed if
    /// LoopOptions::weights asks for the best weights. If the score is not finite, the loop only
    /// warns, except after the last step: then train() throws LastEvaluationError instead.
    std::optional<Score> score = std::nullopt;
    /// If set, called on every rank after the evaluation. If the evaluation is the best so far, and
    /// LoopOptions::weights asks for the best weights, they are saved before this call. So if
    /// `evaluate` measures other weights than the trained ones, such as averages, it should leave
    /// the measured weights in the model, and `after` should restore the trained ones.
    std::function<void()> after = nullptr;

    bool finite() const { return !score || score->valid(); }
  };
  /// Evaluates the model. The argument is the number of finished steps.
  std::function<Evaluation(int64_t)> evaluate = nullptr;
  /// Opens a file for the weights. Needed if LoopOptions::weights asks for saves.
  WeightSaves::Open open_weights = nullptr;
  /// Returns additional members for a step's line of the log. Called on every rank when the step is
  /// launched: ZeroOptimizer::for_each_parameter then gives the weights after the step's update.
  std::function<JsonObject(int64_t)> describe = [](int64_t) { return JsonObject(); };
  /// Settings for the checkpoint's manifest (manifest.h). `run` has the settings that define the
  /// run. `bits` has further settings that change the bits of results.
  dist::Settings run = {};
  dist::Settings bits = {};
  /// The metadata for files of the model's weights. The loop only stores the metadata in
  /// checkpoints. When export_weights makes a weights file from a checkpoint, it adds the metadata
  /// to the file or, for a GPT, makes config.json from the metadata.
  std::map<std::string, std::string> weights = {};
};

/// Returns the message that the score of the evaluation after `done` steps is not finite. `f16`:
/// the model is in fp16, whose activations can overflow although weights and data are valid.
std::string non_finite_evaluation(int64_t done, bool f16);

/// Thrown on all ranks if the score of the last evaluation of a run is not finite. The ranks can
/// still use the trained parameters, for example to save the weights.
class LastEvaluationError : public Error {
 public:
  using Error::Error;
};

class StepLoop {
 public:
  /// World, optimizer and log must outlive the loop. Throws if `work` lacks a function that the
  /// options require, if the options contradict each other (fewer steps than
  /// LoopOptions::first_step; best weights without evaluations), or if checkpoints and the saves of
  /// WeightSaveOptions::every would be in the same folder. Also throws as the constructors of
  /// RunCheckpoints and WeightSaves do. Collective.
  StepLoop(const LoopOptions& options, const dist::World& world, optim::ZeroOptimizer& optimizer,
           RunLog& log, StepWork work);
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  /// Runs the steps from first_step on. If checkpoints are wanted, a signal may end the run before
  /// its last step (run_checkpoints.h), and the last checkpoint is written at the end. Collective.
  /// Throws on all ranks:
  ///  - LastCheckpointError if this checkpoint cannot be written;
  ///  - otherwise LastEvaluationError if the score after the last step is not finite.
  /// After these two errors the caller can still save the weights. Any other error ends the whole
  /// job, for example if a function of StepWork throws, or if a loss or gradient is not finite and
  /// losses are not scaled. A checkpoint is written by a thread of its own. If the job has several
  /// ranks, and this thread is writing when the error occurs, train() itself ends the job
  /// (dist::end_failed_body), because unwinding waits for the thread.
  void train();
  /// Returns what was counted since first_step: logged steps, among them the skipped ones; saves;
  /// and how many rows of row-sparse tables were looked up, sent and updated.
  const StepCount& count() const { return count_; }
  /// Returns the number of updates since step 0: finished steps without the skipped ones.
  int64_t updates() const { return options_.first_step + count_.steps - skipped(); }
  /// Returns WeightSaves::failure: a message about weights that are not saved or are lost, or an
  /// empty text. All ranks get the same text.
  std::string failed_save() const { return saves_ ? saves_->failure() : ""; }
  /// True if a signal has ended the run before its last step.
  bool stopped() const { return stopped_; }

 private:
  using Clock = std::chrono::steady_clock;
  // A launched step whose result the loop has not read yet.
  struct Running {
    int64_t step;
    Clock::time_point begin;
    optim::LaunchedStep launched;
    Clock::time_point launch_end;
    JsonObject description;
    int64_t checkpoint_wait_ns;
    std::map<std::string, float> norms;  // empty: not asked for in this step
  };

  int64_t run_steps();
  void write_last_checkpoint(int64_t done);
  bool wants_norms(int64_t step) const {
    return options_.norms_every > 0 && (step + 1) % options_.norms_every == 0;
  }
  void count_rows();
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
  // If the caller gave only `forward`, the constructor makes a `load`, which stores the micro-batch
  // here.
  MicroBatch loaded_;
  std::map<std::string, optim::RowCounts> rows_before_;  // counted before this loop was made
  Progress progress_;
  TimelineRecorder timeline_;
  std::optional<Running> running_;
  Clock::time_point last_end_;
  StepCount count_;
  bool stopped_ = false;
  bool last_score_finite_ = true;  // false if the evaluation after the last step is not finite
  std::unique_ptr<WeightSaves> saves_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
};

/// Trains, and writes all that `files` names. Collective.
///
/// After the last step calls `finish`, which must save the weights and write files.trace. After
/// success, `finish` returns an empty text. If the weights were not saved, it returns the reason on
/// every rank (save_or_rescue). If only the trace was not written, it returns the reason on rank 0
/// alone (try_to_write_trace).
///
/// If a signal stops the run, the last checkpoint has the weights. So run_to_end does not call
/// `finish`, and writes the trace itself. If this checkpoint cannot be written, run_to_end calls
/// `save`, if it is given, before it writes the trace. `save` must save the weights. It returns an
/// empty text, or on every rank the reason why the weights were not saved.
///
/// The following failures end the job, but only after the remaining files are written. Rank 0 then
/// throws the first failure as an error:
///  - an output or the last checkpoint cannot be written;
///  - a save of weights during the run has failed (StepLoop::failed_save);
///  - the last evaluation is not finite.
void run_to_end(StepLoop& loop, const RunFiles& files, const dist::World& world,
                const std::function<std::string()>& finish,
                const std::function<std::string()>& save = nullptr);

/// Compares the memory and traffic of each rank with the rank's plan. If a step's timeline was
/// recorded (StepCount::timeline), writes the timeline to the log. Then writes a summary line to
/// the log, calls `before_tables` on every rank, and prints tables of memory and traffic on the
/// standard output of rank 0. If shows_messages() is false, prints these tables only if a rank
/// differs from its plan. Collective.
void report_run(
    const optim::Plan& planned, const StepCount& count, const dist::World& world, RunLog& log,
    const std::function<void()>& before_tables = [] {});

}  // namespace tessera::train
