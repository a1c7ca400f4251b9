// A training run that is small enough to repeat in many configurations. It trains a GPT with a tied
// embedding and dropout. By default, a step has 12 micro-batches.
#pragma once

#include "models/gpt/gpt.h"
#include "tests/support/training.h"

namespace tessera::test {

struct TinyRun {
  int64_t steps = 10;
  Batch batch{.global = 24, .micro = 2};
  models::GptConfig model{.layers = 2, .heads = 2, .width = 20, .context = 8, .vocab = 37,
                          .dropout = 0.1f};
  DType dtype = DType::f32;  // the dtype of all parameters
};

/// The tokens and targets of a micro-batch. A sample's values depend only on the run's settings and
/// on the sample's number in the run.
struct TinyBatch {
  Tensor tokens;
  Tensor targets;
};
TinyBatch tiny_batch(const TinyRun& run, const MicroBatch& micro);

/// Returns the training of `model`, which must have the run's sizes and outlive the result.
Training tiny_training(const TinyRun& run, models::Gpt& model);
TrainingResult train_tiny(const TinyRun& run, const dist::World& world,
                          optim::ZeroOptions options);

}  // namespace tessera::test
