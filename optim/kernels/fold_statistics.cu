// fold_statistics on CUDA: one thread per running value goes through the micro-batches in order.
#include "core/cuda/kernel.cuh"
#include "optim/kernels/fold_statistics.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads)
    fold_statistics_kernel(float* running, const float* observed, int64_t values,
                           StatisticsFold fold, const StepScalars* scalars) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= values || (scalars != nullptr && scalars->skip != 0)) return;
  float y = running[i];
  for (int64_t m = 0; m < fold.micro_batches; ++m) {
    const int64_t slot = m % fold.ranks * fold.micro_steps + m / fold.ranks;
    const float* const x = observed + slot * (values + 1);
    if (x[values] != 0) y = fmaf(fold.momentum, x[i], (1 - fold.momentum) * y);
  }
  running[i] = y;
}

}  // namespace

void fold_statistics(const Context& context, const Tensor& running, const Tensor& observed,
                     const StatisticsFold& fold, const StepScalars* scalars) {
  const int64_t values = running.elements();
  launch(context, "fold_statistics", {blocks_for(values, threads), threads},
         fold_statistics_kernel, running.data<float>(), observed.data<float>(), values, fold,
         scalars);
}

}  // namespace tessera::cuda
