// The kernel launchers of max over dimensions.
#pragma once

#include "core/dispatch.h"
#include "core/ops/reduced_runs.h"

namespace tessera {

/// y = the largest element of each run of x, or NaN if the run has a NaN. Runs must not be empty.
TESSERA_KERNEL(max_forward, const Tensor& y, const Tensor& x, const ReducedRuns& runs)
/// dx = dy / n for the n elements of a run that equal the run's maximum y, and zero for the other
/// elements of the run. If the maximum is NaN, dx is NaN for the whole run.
TESSERA_KERNEL(max_backward, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& y,
               const ReducedRuns& runs)

}  // namespace tessera
