// Launcher that sums the squares of each block. The norm of a gradient is computed from these sums.
#pragma once

#include <span>

#include "core/dispatch.h"

namespace tessera {

/// sums[i] = the fp64 sum of squares of block i of x (blocks of 256 elements). sums is in memory of
/// the context's device.
TESSERA_KERNEL(block_square_sums, std::span<double> sums, const Tensor& x)

}  // namespace tessera
