// fold_statistics: updates the running statistics with the batch statistics of a step's
// micro-batches, in order of the micro-batches. Evaluation normalises with the running statistics.
// No autograd operation wraps this launcher.
#include "core/cpu/vector_math.h"
#include "optim/kernels/fold_statistics.h"

namespace tessera::cpu {

void fold_statistics(const Context&, const Tensor& running, const Tensor& observed,
                     const StatisticsFold& fold, const StepScalars* scalars) {
  if (scalars != nullptr && scalars->skip != 0) return;
  const int64_t values = running.elements();
  float* const y = running.data<float>();
  for (int64_t m = 0; m < fold.micro_batches; ++m) {
    const int64_t slot = m % fold.ranks * fold.micro_steps + m / fold.ranks;
    const float* const x = observed.data<float>() + slot * (values + 1);
    if (x[values] == 0) continue;  // micro-batch m had no data
    for (int64_t i = 0; i < values; ++i) {
      y[i] = multiply_add(fold.momentum, x[i], (1 - fold.momentum) * y[i]);
    }
  }
}

}  // namespace tessera::cpu
