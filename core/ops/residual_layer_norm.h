// The kernel launcher of residual_layer_norm's forward. The backward is layer_norm_backward, with
// the gradient of the sum as dsum.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// sum = x + residual, y = layer_norm(sum). Also writes mean and rstd, f32 (R), of the rows of
/// `sum`.
TESSERA_KERNEL(residual_layer_norm_forward, const Tensor& y, const Tensor& sum, const Tensor& mean,
               const Tensor& rstd, const Tensor& x, const Tensor& residual, const Tensor& weight,
               const Tensor& bias, float epsilon)

}  // namespace tessera
