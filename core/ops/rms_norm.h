// The launchers of rms_norm.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// Rows of C: y = x * rrms * weight; rrms = 1 / sqrt(mean(x^2) + epsilon) is f32 (R).
TESSERA_KERNEL(rms_norm_forward, const Tensor& y, const Tensor& rrms, const Tensor& x,
               const Tensor& weight, float epsilon)
/// Either destination may be undefined.
TESSERA_KERNEL(rms_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
               const Tensor& x, const Tensor& rrms, const Tensor& weight)

}  // namespace tessera
