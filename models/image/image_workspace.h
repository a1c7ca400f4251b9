// Predicts the scratch memory of each operation's kernels, for models/image/image_memory.h.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/ops/conv2d.h"

namespace tessera::models {

/// Each function returns the peak bytes of one operation on `context`, including its gradient if
/// `training` is true. can_be_queried (models/kernel_workspace.h) must be true for the context's
/// device.
struct ImageWorkspace {
  Context context;
  DType dtype;
  bool training;

  /// `wants_dx` is false for a network's first convolution, whose input needs no gradient.
  int64_t conv2d(const Conv2dSizes& sizes, bool has_bias, bool wants_dx) const;
  int64_t batch_norm(int64_t rows, int64_t channels) const;
  int64_t linear(int64_t rows, int64_t in, int64_t out) const;
  /// If `smoothed` is true, the gradient of the logits is a sum of two terms. For 16-bit logits,
  /// this sum is computed in f32, in workspace.
  int64_t cross_entropy(int64_t rows, int64_t classes, bool smoothed) const;
};

}  // namespace tessera::models
