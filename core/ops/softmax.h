// The kernel launchers of softmax, log_softmax and logsumexp. A run is the elements of x over which
// one sum is taken (core/ops/reduced_runs.h). The forwards compute for each run:
//   shift   the run's maximum, or 0 if the maximum is infinite
//   sum     the sum of exp(x - shift) over the run
#pragma once

#include "core/dispatch.h"
#include "core/ops/reduced_runs.h"

namespace tessera {

/// y = exp(x - shift) / sum, multiplied by the run's factor if `factors` is defined. `factors` has
/// one element per run, of x's dtype.
TESSERA_KERNEL(softmax_forward, const Tensor& y, const Tensor& x, const Tensor& factors,
               const ReducedRuns& runs)
/// y = x - shift - log(sum)
TESSERA_KERNEL(log_softmax_forward, const Tensor& y, const Tensor& x, const ReducedRuns& runs)
/// y = shift + log(sum), one element for each run; -infinity if a run is empty.
TESSERA_KERNEL(logsumexp_forward, const Tensor& y, const Tensor& x, const ReducedRuns& runs)

/// dx = y (dy - sum(y dy)), where y is the result of softmax.
TESSERA_KERNEL(softmax_backward, const Tensor& dx, const Tensor& dy, const Tensor& y,
               const ReducedRuns& runs)
/// dx = dy - exp(y) sum(dy), where y is the result of log_softmax.
TESSERA_KERNEL(log_softmax_backward, const Tensor& dx, const Tensor& dy, const Tensor& y,
               const ReducedRuns& runs)

}  // namespace tessera
