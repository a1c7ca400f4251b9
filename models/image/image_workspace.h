// The workspace half of models/image/image_memory.h: the scratch memory of the kernels of each
// operation.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/ops/conv2d.h"

namespace tessera::models {

/// Peak bytes of an operation on `context`, with its gradient in training. The device must be there
/// to be asked (models/kernel_workspace.h).
struct ImageWorkspace {
  Context context;
  DType dtype;
  bool training;

  /// `wants_dx`: not of a network's first convolution.
  int64_t conv2d(const Conv2dSizes& sizes, bool has_bias, bool wants_dx) const;
  int64_t batch_norm(int64_t rows, int64_t channels) const;
  int64_t linear(int64_t rows, int64_t in, int64_t out) const;
  /// The gradient of smoothed labels in 16 bits is summed in f32.
  int64_t cross_entropy(int64_t rows, int64_t classes, bool smoothed) const;
};

}  // namespace tessera::models
