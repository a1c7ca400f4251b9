// Launcher of the block sums of squares from which the norm of a gradient is computed.
#pragma once

#include <span>

#include "core/dispatch.h"

namespace tessera {

/// sums[i] = the fp64 sum of squares of block i of x (blocks of 256 elements). sums is in memory of
/// the context's device.
TESSERA_KERNEL(block_square_sums, std::span<double> sums, const Tensor& x)

}  // namespace tessera
