// The launchers of operations on images, as core/kernels.h has those of the others. Images are
// (N, H, W, C): N images of H rows and W columns of pixels, C channels (torch's channels_last).
#pragma once

#include <cstdint>

#include "core/kernels.h"

namespace tessera {

/// A height and a width; one number stands for both.
struct Size2 {
  int64_t height = 0;
  int64_t width = 0;

  constexpr Size2(int64_t both) : height(both), width(both) {}  // NOLINT: as in {.stride = 2}
  constexpr Size2(int64_t h, int64_t w) : height(h), width(w) {}
  bool operator==(const Size2&) const = default;
};

struct Conv2dOptions {
  Size2 stride = 1;
  Size2 padding = 0;   // zeros on each side
  Size2 dilation = 1;  // distance between the pixels that neighbouring weights meet
  int64_t groups = 1;  // channels in as many groups, each convolved by itself
  bool operator==(const Conv2dOptions&) const = default;
};

struct PoolOptions {
  Size2 kernel = 1;
  Size2 stride = 1;
  Size2 padding = 0;  // on each side; at most half the kernel
};

/// y (N, H', W', O) = x (N, H, W, C) convolved with weight (O, C / groups, kh, kw) + bias (O); bias
/// may be undefined.
TESSERA_KERNEL(conv2d_forward, const Tensor& y, const Tensor& x, const Tensor& weight,
               const Tensor& bias, const Conv2dOptions& options)
/// Any of dx, dweight, dbias may be undefined; x may where dweight is, and the weight where dx is.
TESSERA_KERNEL(conv2d_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& x, const Tensor& weight,
               const Conv2dOptions& options)

// Batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) of x (..., C) over all of its R rows.
// mean, variance, rstd and all sums are f32 (C). Sums over rows are in an order that depends on R
// and C alone.

/// mean = of the rows, variance = the mean of (x - mean)^2 over rows.
TESSERA_KERNEL(batch_norm_statistics, const Tensor& mean, const Tensor& variance, const Tensor& x)
/// rstd = 1 / sqrt(variance + epsilon)
TESSERA_KERNEL(batch_norm_rstd, const Tensor& rstd, const Tensor& variance, float epsilon)
/// y = (x - mean) * rstd * weight + bias + residual, then y = max(y, 0) with relu. residual may be
/// undefined.
TESSERA_KERNEL(batch_norm_forward, const Tensor& y, const Tensor& x, const Tensor& residual,
               const Tensor& mean, const Tensor& rstd, const Tensor& weight, const Tensor& bias,
               bool relu)
/// With n = (x - mean) * rstd and g = dy, or with relu g = dy where y > 0 and 0 elsewhere:
/// sum_g = sum of g, sum_gn = sum of g * n over rows. y is undefined without relu.
TESSERA_KERNEL(batch_norm_backward_sums, const Tensor& sum_g, const Tensor& sum_gn,
               const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& mean,
               const Tensor& rstd)
/// dx = weight * rstd * (g - sum_g * factor - n * sum_gn * factor), dresidual = g. Either may be
/// undefined. factor = 1 / the rows that the statistics are of; where they do not depend on x it
/// is 0, and the sums may be undefined.
TESSERA_KERNEL(batch_norm_backward, const Tensor& dx, const Tensor& dresidual, const Tensor& dy,
               const Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& rstd,
               const Tensor& weight, const Tensor& sum_g, const Tensor& sum_gn, float factor)

TESSERA_KERNEL(relu_forward, const Tensor& y, const Tensor& x)
TESSERA_KERNEL(relu_backward, const Tensor& dx, const Tensor& dy, const Tensor& y)

/// y (N, H', W', C); places u8 of y's shape: which pixel of the window, row by row from 0, is the
/// first that has the maximum (NaN is larger than all numbers). Pixels of the padding never are it.
TESSERA_KERNEL(max_pool_forward, const Tensor& y, const Tensor& places, const Tensor& x,
               const PoolOptions& options)
TESSERA_KERNEL(max_pool_backward, const Tensor& dx, const Tensor& dy, const Tensor& places,
               const PoolOptions& options)
/// Means over windows, in f32; pixels of the padding count as zeros (torch's count_include_pad).
TESSERA_KERNEL(avg_pool_forward, const Tensor& y, const Tensor& x, const PoolOptions& options)
TESSERA_KERNEL(avg_pool_backward, const Tensor& dx, const Tensor& dy, const PoolOptions& options)

/// What label smoothing adds to cross-entropy: losses[r] += smoothing * (logits[r][target] -
/// mean(logits[r])); losses f32 (R), logits (R, V), targets i32 (R).
TESSERA_KERNEL(label_smoothing_forward, const Tensor& losses, const Tensor& logits,
               const Tensor& targets, float smoothing)
/// dlogits[r] += (onehot(target) - 1 / V) * smoothing * scale * dloss[0]; dlogits f32 (R, V).
TESSERA_KERNEL(label_smoothing_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& targets, float smoothing, float scale)

}  // namespace tessera
