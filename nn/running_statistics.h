// The running mean and variance that a batch norm collects in training and uses in evaluation. As
// for a Parameter, an optimizer, `materialize` or `load_weights` allocates their memory.
//
// The optimizer sets the hook `observed`, and collects the statistics of each micro-batch. At the
// end of a training step, the optimizer updates the running statistics with the collected ones, in
// order of the micro-batches. So evaluation does not depend on which process ran which micro-batch
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

  /// In training, receives the mean and the unbiased variance, f32 (C), of each micro-batch or, if
  /// `parts` describes several parts, of the whole batch. Without this hook, observe() updates the
  /// running statistics immediately.
  std::function<void(const Tensor& mean, const Tensor& variance)> observed;
  /// Returns true if the norm is in evaluation mode and its parameters are frozen. The norm then
  /// uses the running statistics and does not change them, even if other parts of the model are
  /// trained. If this function is not set, the statistics count as changing.
  std::function<bool()> fixed;
  bool is_fixed() const { return fixed && fixed(); }
  /// Describes the micro-batches that are normalised with common statistics, as parts of one batch.
  /// By default each micro-batch is normalised with its own statistics.
  ops::BatchParts parts;

  /// Returns the bytes of mean and variance together. The variance is stored right after the mean.
  int64_t bytes() const { return mean.bytes() + variance.bytes(); }
  /// Places mean and variance in `storage`, from `offset_bytes` on.
  void attach(const std::shared_ptr<Storage>& storage, int64_t offset_bytes);
  /// Sets mean to 0 and variance to 1.
  void reset();
  /// Passes the statistics of one forward to `observed`. Without this hook, updates `mean` and
  /// `variance`, and throws if they have no memory.
  void observe(const Tensor& batch_mean, const Tensor& batch_variance);
};

}  // namespace tessera::nn
