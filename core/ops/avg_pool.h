// The launchers of avg_pool, which global_avg_pool uses too.
#pragma once

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

/// Means over windows, in f32; pixels of the padding count as zeros (torch's count_include_pad).
TESSERA_KERNEL(avg_pool_forward, const Tensor& y, const Tensor& x, const PoolOptions& options)
TESSERA_KERNEL(avg_pool_backward, const Tensor& dx, const Tensor& dy, const PoolOptions& options)

}  // namespace tessera
