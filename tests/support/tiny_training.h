// A training run small enough to repeat in many configurations: a GPT with a tied embedding,
// dropout and clipping, on a batch of 12 micro-batches.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "models/gpt.h"
#include "optim/zero_optimizer.h"

namespace tessera::test {

struct TinyRun {
  int64_t steps = 10;
  optim::Batch batch{.global = 24, .micro = 2};
  models::GptConfig model{.layers = 2, .heads = 2, .width = 20, .context = 8, .vocab = 37,
                          .dropout = 0.1f};
};

/// What must be equal, bit for bit.
struct TinyResult {
  std::vector<float> losses;
  std::vector<float> grad_norms;
  std::map<std::string, std::vector<float>> weights;

  bool operator==(const TinyResult&) const = default;
};

/// Tokens and targets of a micro-batch, functions of its step and first sample alone.
struct TinyBatch {
  Tensor tokens;
  Tensor targets;
};
TinyBatch tiny_batch(const TinyRun& run, const optim::MicroBatch& micro);

/// Weights by name.
std::map<std::string, std::vector<float>> weights_of(const nn::Module& model);

TinyResult train_tiny(const TinyRun& run, const dist::World& world, optim::ZeroOptions options);

/// The world of a job of one rank, inside any job.
dist::World lone_world();
/// The world of this job of MPI.
dist::World job_world();

}  // namespace tessera::test
