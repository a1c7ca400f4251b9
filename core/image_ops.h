// The operations that models for images need, each with a short contract; core/ops.h and
// core/table_ops.h have the other operations. Images are (N, H, W, C): N images, H pixels high and
// W pixels wide, with C channels (torch's channels_last).
#pragma once

#include <cstdint>
#include <functional>

#include "core/ops/options.h"
#include "core/tensor.h"

namespace tessera::ops {

/// x (N, H, W, C), weight (O, C / groups, kh, kw), bias (O) -> (N, H', W', O), with
///   H' = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1.
/// The weight has torch's layout. bias may be undefined. On CUDA, a tensor that does not begin at a
/// multiple of 16 bytes, as a slice of a batch may, is copied into or out of the workspace; no
/// memory plan counts the copies.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options = {});

struct BatchNormOptions {
  float epsilon = 1e-5f;
  bool relu = false;  // applied last, after the residual is added
};

/// A batch that is split into parts of equal size, such as one part per rank. Each part has its own
/// call of batch_norm, which normalises with the statistics of the whole batch.
struct BatchParts {
  int64_t count = 1;
  /// Replaces a tensor by its sum over all parts. Not called if there is one part.
  std::function<void(const Tensor&)> sum;
};

struct BatchNorm {
  Tensor y;
  Tensor mean;      // f32 (C), of the whole batch
  Tensor variance;  // f32 (C), biased (divided by the number of rows), without epsilon
};
/// Normalises each channel over all rows of the batch: (..., C) -> (..., C), where a row has one
/// value per channel. x is the whole batch, or one part of the batch if there are several `parts`.
/// weight and bias are (C). residual has x's shape and is added to the result; residual may be
/// undefined. No gradient flows from the returned mean and variance.
BatchNorm batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual = {}, BatchNormOptions options = {},
                     const BatchParts& parts = {});
/// batch_norm with a given mean and variance, f32 (C), as in evaluation. The mean and the variance
/// get no gradient.
Tensor batch_norm_with(const Tensor& mean, const Tensor& variance, const Tensor& x,
                       const Tensor& weight, const Tensor& bias, const Tensor& residual = {},
                       BatchNormOptions options = {});

Tensor relu(const Tensor& x);

/// (N, H, W, C) -> (N, H', W', C), H' = floor((H + 2 padding - kernel) / stride) + 1. Windows of
/// max_pool have at most 255 pixels.
Tensor max_pool(const Tensor& x, const PoolOptions& options);
/// The mean over each window, with the shapes of max_pool. Padding counts as zeros. The pixels of a
/// window are added up one after the other in f32, which is inexact for thousands of pixels.
Tensor avg_pool(const Tensor& x, const PoolOptions& options);
/// (N, H, W, C) -> (N, C). Images of more than 1,024 pixels are summed in f64.
Tensor global_avg_pool(const Tensor& x);

/// (N, H, W, C) -> (N, C * H * W) in torch's order, channel by channel.
Tensor flatten(const Tensor& x);

/// cross_entropy with target probabilities (1 - smoothing) onehot + smoothing / V (Szegedy et al.,
/// arXiv:1512.00567). logits (R, V), targets i32 (R), smoothing in [0, 1) -> f32 scalar [].
Tensor smoothed_cross_entropy(const Tensor& logits, const Tensor& targets, float smoothing);

}  // namespace tessera::ops
