// The launchers of max_pool.
#pragma once

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

/// y (N, H', W', C); places u8 of y's shape: which pixel of the window, row by row from 0, is the
/// first that has the maximum (NaN is larger than all numbers). Pixels of the padding never are it.
TESSERA_KERNEL(max_pool_forward, const Tensor& y, const Tensor& places, const Tensor& x,
               const PoolOptions& options)
TESSERA_KERNEL(max_pool_backward, const Tensor& dx, const Tensor& dy, const Tensor& places,
               const PoolOptions& options)

}  // namespace tessera
