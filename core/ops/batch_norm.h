// The launchers of batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) of x (..., C) over all
// of its R rows. mean, variance, rstd and all sums are f32 (C). The order of sums over rows depends
// only on R and C, and on CUDA also on the dtype.
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
/// sum_g = sum of g, sum_gn = sum of g * n over rows, where n = (x - mean) * rstd and
///   g = dy where y > 0, else 0, if y is defined (the forward applied relu);
///   g = dy if y is undefined.
TESSERA_KERNEL(batch_norm_backward_sums, const Tensor& sum_g, const Tensor& sum_gn,
               const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& mean,
               const Tensor& rstd)
/// dx = weight * rstd * (g - sum_g * factor - n * sum_gn * factor), dresidual = g, with n and g of
/// batch_norm_backward_sums. dx and dresidual may be undefined. `factor` is 1 / (number of rows
/// that the statistics were computed from), or 0 if the statistics do not depend on x. If `factor`
/// is 0, sum_g and sum_gn may be undefined.
TESSERA_KERNEL(batch_norm_backward, const Tensor& dx, const Tensor& dresidual, const Tensor& dy,
               const Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& rstd,
               const Tensor& weight, const Tensor& sum_g, const Tensor& sum_gn, float factor)

}  // namespace tessera
