// The launchers of max_pool.
#pragma once

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

/// y (N, H', W', C): the maximum over each window. NaN is larger than all numbers, and padding does
/// not count. places, u8 of y's shape: the first pixel of the window that has the maximum, counted
/// row by row from 0.
TESSERA_KERNEL(max_pool_forward, const Tensor& y, const Tensor& places, const Tensor& x,
               const PoolOptions& options)
TESSERA_KERNEL(max_pool_backward, const Tensor& dx, const Tensor& dy, const Tensor& places,
               const PoolOptions& options)

}  // namespace tessera
