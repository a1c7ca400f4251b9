// What a normalisation over the batch keeps for evaluation: the running mean and variance of what
// it has normalised in training. Like a Parameter it has no memory until someone lays it out.
//
// Whoever trains with several micro-batches a step sets `observed`, and brings their statistics
// into the running ones in their order, so that evaluation does not depend on who had which of them
// (optim/zero/end_of_step/batch_statistics.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/image_ops.h"
#include "core/tensor.h"

namespace tessera::nn {

struct RunningStatistics {
  RunningStatistics(int64_t channels, float momentum);

  Tensor mean;      // f32 (C)
  Tensor variance;  // f32 (C), unbiased
  float momentum;   // running = (1 - momentum) * running + momentum * new

  /// Called with the mean and the unbiased variance, f32 (C), of each micro-batch in training.
  /// Without this hook they become part of the running ones at once.
  std::function<void(const Tensor& mean, const Tensor& variance)> observed;
  /// The micro-batches that are normalised together, each of them a part.
  ops::BatchParts parts;

  /// Of mean and variance, which lie one behind the other.
  int64_t bytes() const { return mean.bytes() + variance.bytes(); }
  void attach(const std::shared_ptr<Storage>& storage, int64_t offset_bytes);
  /// Mean 0 and variance 1.
  void reset();
  void observe(const Tensor& batch_mean, const Tensor& batch_variance);
};

}  // namespace tessera::nn
