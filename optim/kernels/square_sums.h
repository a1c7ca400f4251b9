// Launcher that sums the squares of each block of 256 elements. The norm of a gradient is computed
// from these sums.
#pragma once

#include <span>

#include "core/dispatch.h"

namespace tessera {

/// sums[i] = the fp64 sum of squares of block i of x (blocks of 256 elements). sums is in memory of
/// the context's device. Replaces each -0.0 in x by +0.0, because a gradient that was written
/// directly into its sum (GradientsInSums) was never added to +0.0, as an ordered reduction does.
TESSERA_KERNEL(block_square_sums, std::span<double> sums, const Tensor& x)

}  // namespace tessera
