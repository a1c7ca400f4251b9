// Launcher that sums the squares of each block of 256 elements. The norm of a gradient is computed
// from these sums.
#pragma once

#include <span>

#include "core/dispatch.h"

namespace tessera {

/// sums[i] = the fp64 sum of squares of block i of x (blocks of 256 elements). sums is in memory of
/// the context's device.
///
/// Also replaces each -0.0 in x by +0.0, so that gradient sums have the same bits with and without
/// GradientsInSums (optim/zero/gradient_policy.h). With GradientsInSums, a step's first gradient is
/// written directly into the gradient sum, and may contain -0.0. Without GradientsInSums, an
/// ordered reduction adds the first gradient to +0.0, which turns -0.0 into +0.0.
TESSERA_KERNEL(block_square_sums, std::span<double> sums, const Tensor& x)

}  // namespace tessera
