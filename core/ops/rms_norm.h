// The kernel launchers of rms_norm.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = x * rrms * weight for each of the R rows of C elements, where weight has shape (C). Also
/// writes rrms = 1 / sqrt(mean(x^2) + epsilon) of each row. The tensor rrms is f32, with shape (R).
TESSERA_KERNEL(rms_norm_forward, const Tensor& y, const Tensor& rrms, const Tensor& x,
               const Tensor& weight, float epsilon)
/// Computes dx, if dx is defined, and dweight, if dweight is defined.
TESSERA_KERNEL(rms_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
               const Tensor& x, const Tensor& rrms, const Tensor& weight)

}  // namespace tessera
