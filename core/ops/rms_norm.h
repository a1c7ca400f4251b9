// The launchers of rms_norm.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// For each row of C elements y = x * rrms * weight. Writes rrms = 1 / sqrt(mean(x^2) + epsilon),
/// f32 (R), too.
TESSERA_KERNEL(rms_norm_forward, const Tensor& y, const Tensor& rrms, const Tensor& x,
               const Tensor& weight, float epsilon)
/// dx or dweight may be undefined.
TESSERA_KERNEL(rms_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
               const Tensor& x, const Tensor& rrms, const Tensor& weight)

}  // namespace tessera
