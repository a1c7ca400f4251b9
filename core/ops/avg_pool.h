// The kernel launchers of avg_pool, which global_avg_pool of small images uses too.
#pragma once

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

/// y is the mean over each window, summed in f32. Pixels of the padding count as zeros, as with
/// PyTorch's count_include_pad.
TESSERA_KERNEL(avg_pool_forward, const Tensor& y, const Tensor& x, const PoolOptions& options)
/// dx of a pixel is the sum of dy over the windows that cover the pixel, divided by the size of a
/// window.
TESSERA_KERNEL(avg_pool_backward, const Tensor& dx, const Tensor& dy, const PoolOptions& options)

}  // namespace tessera
