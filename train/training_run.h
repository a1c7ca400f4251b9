// The options of a training run. Optimizer, step loop and plan are made from the same options.
//
//   const train::TrainingRun run{.rule = optim::AdamW{.learning_rate = 3e-4f},
//                                .zero = {.stage = 2},
//                                .loop = {.steps = 100, .batch = {.global = 48, .micro = 12}}};
//   optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
//   train::StepLoop loop(run.loop, world, optimizer, *log, {...});
//   const optim::Plan plan = train::plan_run(run, model, train::place_of(world));
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/micro_batch.h"
#include "nn/module.h"
#include "optim/zero_optimizer.h"
#include "train/score.h"

namespace tessera::train {

/// Options of the checkpoints of a run (train/checkpoint/run_checkpoints.h).
struct CheckpointOptions {
  std::string folder = {};  // empty: no checkpoints
  int64_t every = 0;        // steps between checkpoints; 0: only at the end and on a signal
  int64_t keep = 3;         // number of newest checkpoints that are not removed; at least 1
  bool async = true;        // true: written from a copy of the state while training continues
  /// The most bytes of a rank's copy; nullopt: all state that the rank saves. State that does not
  /// fit is read in place, and the next update waits for the read (train/checkpoint/state_copy.h).
  std::optional<int64_t> staging = std::nullopt;
  /// The step of a checkpoint that the folder already has. This step is not saved again. -1: none.
  int64_t saved_step = -1;
  /// True if the same command goes on from the newest checkpoint in the folder. For messages only.
  bool resumes_newest = true;

  bool wanted() const { return !folder.empty(); }
  bool staged() const { return wanted() && async; }
};

/// Options for saves of the weights alone during a run (train/weight_saves.h).
struct WeightSaveOptions {
  std::string path = {};  // file of the weights at the end; other saves are in folders beside it
  int64_t every = 0;      // steps between saves; 0: none
  bool best = false;      // true: save the weights of the best evaluation so far
  /// Says what evaluations measure, such as "ndcg@10 among all 1682 items". A checkpoint records
  /// this text with its best evaluation. If `best` is true and a checkpoint has another text, a
  /// resumed run drops the checkpoint's best evaluation. If the checkpoint's text is empty, the run
  /// keeps this evaluation. The text may leave out settings that a resume checks separately, such
  /// as the digest of the data.
  std::string evaluated = {};

  bool wanted() const { return every > 0 || best; }
};

struct LoopOptions {
  int64_t steps = 0;
  Batch batch;
  int64_t eval_every = 0;  // steps between evaluations; the last step also has one; 0: none
  /// Steps between log lines with the norm of each parameter's gradient; 0: none. On a GPU the host
  /// waits for the gradient in a step with such a line.
  int64_t norms_every = 0;
  bool timeline = false;  // true: log the events of one step (train/report/timeline.h)
  CheckpointOptions checkpoints = {};
  WeightSaveOptions weights = {};
  int64_t first_step = 0;  // steps that were done before this run resumed from a checkpoint
  int64_t skipped = 0;     // number of steps without an update before first_step
  std::optional<BestEvaluation> best = std::nullopt;  // the best evaluation before first_step

  int64_t steps_left() const { return steps - first_step; }
};

struct TrainingRun {
  optim::UpdateRule rule;
  optim::ZeroOptions zero;
  LoopOptions loop;
  /// The measured row counts of row-sparse tables, by name. Set only after the run has ended
  /// (train::as_it_went), to plan the traffic of these rows.
  std::optional<std::map<std::string, optim::RowCounts>> rows = std::nullopt;
};

/// Returns the dtype of the model's first parameter. After Module::to all parameters have this
/// dtype. Throws for a model without parameters.
DType parameter_dtype(const nn::Module& model);
/// Returns "fp32", "bf16" or "fp16".
const char* precision_name(DType dtype);
/// Returns "ordered" or "fast".
const char* reduction_name(optim::Reduction reduction);

}  // namespace tessera::train
