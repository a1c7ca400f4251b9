// The kernel launchers of max_pool.
#pragma once

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

/// y (N, H', W', C) = the maximum over each window, without the padding. NaN is larger than all
/// numbers. `places` (u8, y's shape) is the index of the first pixel in the window that has the
/// maximum; the pixels of a window, with those in the padding, are numbered row by row from 0.
TESSERA_KERNEL(max_pool_forward, const Tensor& y, const Tensor& places, const Tensor& x,
               const PoolOptions& options)
/// dx of a pixel = the sum of dy over the windows for which `places` names this pixel.
TESSERA_KERNEL(max_pool_backward, const Tensor& dx, const Tensor& dy, const Tensor& places,
               const PoolOptions& options)

}  // namespace tessera
