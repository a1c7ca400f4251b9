// The options of a training run, for its optimizer, its loop and its plan.
//
//   const train::TrainingRun run{.rule = optim::AdamW{.learning_rate = 3e-4f},
//                                .zero = {.stage = 2},
//                                .loop = {.steps = 100, .batch = {.global = 48, .micro = 12}}};
//   optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
//   train::StepLoop loop(run.loop, world, optimizer, *log, {...});
//   const optim::Plan plan = train::plan_run(run, model, train::place_of(world));
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/micro_batch.h"
#include "nn/module.h"
#include "optim/zero_optimizer.h"
#include "train/score.h"

namespace tessera::train {

/// When and how checkpoints are written (train/checkpoint/run_checkpoints.h).
struct CheckpointOptions {
  std::string folder = {};  // empty: never
  int64_t every = 0;        // steps; 0: only at the end and on a signal
  int64_t keep = 3;         // how many of the newest stay
  bool async = true;        // written while steps go on, from a copy of the state
  /// The most bytes of a rank's copy; nullopt: all of its own state. State that does not fit is
  /// read in place, and the next update waits for it (train/checkpoint/state_copy.h).
  std::optional<int64_t> staging = std::nullopt;
  int64_t saved_step = -1;  // a step of which the folder has a checkpoint already

  bool wanted() const { return !folder.empty(); }
  bool staged() const { return wanted() && async; }
};

/// When weights alone are saved before the end of a run (train/weight_saves.h).
struct WeightSaveOptions {
  std::string path = {};  // file of the weights at the end; other saves are in folders beside it
  int64_t every = 0;      // steps; 0: never
  bool best = false;      // save those of the best evaluation so far

  bool wanted() const { return every > 0 || best; }
};

struct LoopOptions {
  int64_t steps = 0;
  Batch batch;
  int64_t eval_every = 0;  // steps between evaluations, of which one is at the end; 0: none
  CheckpointOptions checkpoints = {};
  WeightSaveOptions weights = {};
  int64_t first_step = 0;  // steps done before, whose state a checkpoint has restored
  int64_t skipped = 0;     // steps done before without an update
  std::optional<BestEvaluation> best = std::nullopt;  // so far, if its weights are saved

  int64_t steps_left() const { return steps - first_step; }
};

struct TrainingRun {
  optim::UpdateRule rule;
  optim::ZeroOptions zero;
  LoopOptions loop;
};

/// The dtype of the model's first parameter, which is that of all parameters after Module::to.
DType parameter_dtype(const nn::Module& model);
/// "fp32", "bf16" or "fp16".
const char* precision_name(DType dtype);
/// "ordered" or "fast".
const char* reduction_name(optim::Reduction reduction);

}  // namespace tessera::train
