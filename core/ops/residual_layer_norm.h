// The launcher of residual_layer_norm. Its gradient is layer_norm's, with that of the sum.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// sum = x + residual, y = layer_norm(sum).
TESSERA_KERNEL(residual_layer_norm_forward, const Tensor& y, const Tensor& sum, const Tensor& mean,
               const Tensor& rstd, const Tensor& x, const Tensor& residual, const Tensor& weight,
               const Tensor& bias, float epsilon)

}  // namespace tessera
