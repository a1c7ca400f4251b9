// The launchers of softmax, log_softmax and logsumexp, which have the statistics of a run in
// common: with m its maximum, shift = m, or 0 where m is infinite, and sum = sum(exp(x - shift)).
#pragma once

#include "core/dispatch.h"
#include "core/ops/reduced_runs.h"

namespace tessera {

/// y = exp(x - shift) / sum, times the factor of the run where `factors`, of x's dtype, is defined.
TESSERA_KERNEL(softmax_forward, const Tensor& y, const Tensor& x, const Tensor& factors,
               const ReducedRuns& runs)
/// y = x - shift - log(sum)
TESSERA_KERNEL(log_softmax_forward, const Tensor& y, const Tensor& x, const ReducedRuns& runs)
/// y = shift + log(sum), one for each run; -infinity where a run is empty.
TESSERA_KERNEL(logsumexp_forward, const Tensor& y, const Tensor& x, const ReducedRuns& runs)

/// dx = y (dy - sum(y dy)), y the result of softmax
TESSERA_KERNEL(softmax_backward, const Tensor& dx, const Tensor& dy, const Tensor& y,
               const ReducedRuns& runs)
/// dx = dy - exp(y) sum(dy), y the result of log_softmax
TESSERA_KERNEL(log_softmax_backward, const Tensor& dx, const Tensor& dy, const Tensor& y,
               const ReducedRuns& runs)

}  // namespace tessera
