// A training run in plain numbers: what its optimizer, its loop and its plan are given.
//
//   const train::TrainingRun run{.rule = optim::AdamW{.learning_rate = 3e-4f},
//                                .zero = {.stage = 2},
//                                .loop = {.steps = 100, .batch = {.global = 48, .micro = 12}}};
//   optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
//   train::StepLoop loop(run.loop, world, optimizer, *log, {...});
//   const optim::Plan plan = train::plan_run(run, model, train::place_of(world));
#pragma once

#include <cstdint>

#include "core/micro_batch.h"
#include "nn/module.h"
#include "optim/zero_optimizer.h"

namespace tessera::train {

struct LoopOptions {
  int64_t steps = 0;
  Batch batch;
  int64_t eval_every = 0;  // steps between evaluations, of which one is at the end; 0: none
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
