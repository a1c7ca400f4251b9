// The launchers of layer_norm.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// For each row of C elements y = (x - mean) * rstd * weight + bias. Writes mean and rstd, f32 (R),
/// too.
TESSERA_KERNEL(layer_norm_forward, const Tensor& y, const Tensor& mean, const Tensor& rstd,
               const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon)
/// dx = the gradient through the norm, plus dsum if that is defined. Any of dx, dweight and dbias
/// may be undefined.
TESSERA_KERNEL(layer_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& dsum, const Tensor& x, const Tensor& mean,
               const Tensor& rstd, const Tensor& weight)

}  // namespace tessera
