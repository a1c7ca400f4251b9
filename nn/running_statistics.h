// The running mean and variance that a batch norm collects in training and uses in evaluation. Like
// a Parameter, they have no memory until an optimizer or `materialize` allocates it.
//
// The optimizer sets `observed`. At the end of a step it folds the statistics of the micro-batches
// into the running ones, in order of the micro-batches. So evaluation does not depend on which
// process had which micro-batch (optim/zero/end_of_step/batch_statistics.h).
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
  /// Without this hook these two are folded into the running statistics at once.
  std::function<void(const Tensor& mean, const Tensor& variance)> observed;
  /// Says how many micro-batches are normalised together. By default each one is normalised alone.
  ops::BatchParts parts;

  /// Bytes of mean and variance together, which are stored one behind the other.
  int64_t bytes() const { return mean.bytes() + variance.bytes(); }
  /// Places mean and variance in `storage`, from `offset_bytes` on.
  void attach(const std::shared_ptr<Storage>& storage, int64_t offset_bytes);
  /// Sets mean to 0 and variance to 1.
  void reset();
  /// Passes the statistics of one micro-batch to `observed`. Without that hook, folds them into
  /// mean and variance, and throws if those have no memory.
  void observe(const Tensor& batch_mean, const Tensor& batch_variance);
};

}  // namespace tessera::nn
