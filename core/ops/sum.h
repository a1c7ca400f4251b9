// The kernel launchers of sum and of mean, which is a sum times 1 / elements.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y[0] = factor * sum of x; y is f32. Blocks of 4096 elements are summed first, so the order of
/// addition does not depend on the number of threads.
TESSERA_KERNEL(sum, const Tensor& y, const Tensor& x, float factor)
/// Every element of dx becomes factor * dy[0]; dy is f32.
TESSERA_KERNEL(sum_backward, const Tensor& dx, const Tensor& dy, float factor)

}  // namespace tessera
