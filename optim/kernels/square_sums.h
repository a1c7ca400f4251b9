// The launcher of the sums of squares that a gradient's norm is made of.
#pragma once

#include <span>

#include "core/dispatch.h"

namespace tessera {

/// sums[i] = the fp64 sum of squares of block i of x (blocks of 256 elements); in memory of the
/// context's device.
TESSERA_KERNEL(block_square_sums, std::span<double> sums, const Tensor& x)

}  // namespace tessera
