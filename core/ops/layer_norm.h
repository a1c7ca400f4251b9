// The launchers of layer_norm.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// Rows of C: y = (x - mean) * rstd * weight + bias; mean and rstd are f32 (R).
TESSERA_KERNEL(layer_norm_forward, const Tensor& y, const Tensor& mean, const Tensor& rstd,
               const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon)
/// dx = the gradient through the norm, plus dsum where that is defined. Any destination may be
/// undefined.
TESSERA_KERNEL(layer_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& dsum, const Tensor& x, const Tensor& mean,
               const Tensor& rstd, const Tensor& weight)

}  // namespace tessera
