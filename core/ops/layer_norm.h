// The kernel launchers of layer_norm.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = (x - mean) * rstd * weight + bias for each of the R rows of C elements. Also writes mean and
/// rstd = 1 / sqrt(variance + epsilon) of each row, f32 (R).
TESSERA_KERNEL(layer_norm_forward, const Tensor& y, const Tensor& mean, const Tensor& rstd,
               const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon)
/// dx is the gradient through the norm, plus dsum if dsum is defined. For residual_layer_norm, x is
/// its sum, and dsum is the gradient of the sum. Any of dx, dweight and dbias may be undefined.
TESSERA_KERNEL(layer_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& dsum, const Tensor& x, const Tensor& mean,
               const Tensor& rstd, const Tensor& weight)

}  // namespace tessera
