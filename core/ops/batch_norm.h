// The kernel launchers of batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) of x (..., C)
// over all of its R rows. mean, variance, rstd and all sums are f32 (C). The order in which sums
// add rows depends only on R and C, and on CUDA also on the dtype.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// mean = mean of x over rows, variance = mean of (x - mean)^2 over rows.
TESSERA_KERNEL(batch_norm_statistics, const Tensor& mean, const Tensor& variance, const Tensor& x)
/// rstd = 1 / sqrt(variance + epsilon)
TESSERA_KERNEL(batch_norm_rstd, const Tensor& rstd, const Tensor& variance, float epsilon)
/// y = (x - mean) * rstd * weight + bias + residual, then y = max(y, 0) if `relu`. residual may be
/// undefined.
TESSERA_KERNEL(batch_norm_forward, const Tensor& y, const Tensor& x, const Tensor& residual,
               const Tensor& mean, const Tensor& rstd, const Tensor& weight, const Tensor& bias,
               bool relu)
/// Sums over rows: sum_g = sum of g, and sum_gn = sum of g * n, where n = (x - mean) * rstd. If y
/// is undefined, g = dy. If y is defined (the forward applied relu), g = dy where y > 0, else 0.
TESSERA_KERNEL(batch_norm_backward_sums, const Tensor& sum_g, const Tensor& sum_gn,
               const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& mean,
               const Tensor& rstd)
/// dx = weight * rstd * (g - sum_g * factor - n * sum_gn * factor), dresidual = g, with n and g as
/// in batch_norm_backward_sums. dx and dresidual may be undefined. If dx is undefined, or if the
/// statistics do not depend on x, `factor` is 0, and sum_g and sum_gn may be undefined. Otherwise
/// `factor` is 1 divided by the number of rows from which the statistics were computed.
TESSERA_KERNEL(batch_norm_backward, const Tensor& dx, const Tensor& dresidual, const Tensor& dy,
               const Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& rstd,
               const Tensor& weight, const Tensor& sum_g, const Tensor& sum_gn, float factor)

}  // namespace tessera
