// The terms that label smoothing adds to cross_entropy, on CUDA. Each row of logits has its own
// block. The bits of a row's result do not depend on other rows.
#include "core/ops/label_smoothing.h"
#include "core/ops/rows.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    label_smoothing_kernel(float* losses, const T* logits, const int32_t* targets, int64_t columns,
                           float smoothing) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  const int32_t target = targets[row];
  // Targets outside [0, columns) are skipped; check_targets has reported them.
  if (target < 0 || target >= columns) return;
  const float hit = float(x[target]);
  const RowWalk<threads, n> walk{static_cast<int>(threadIdx.x), columns};
  float total = 0;
  walk.template each<0>([&](int, int64_t at) {
    const Floats<n> values = widened(load_elements<aligned, n>(x + at));
    unrolled<n>([&](int i) { total += hit - values.value[i]; });
  });
  total = row_sum<threads>(total);
  if (threadIdx.x == 0) losses[row] += smoothing * (total / static_cast<float>(columns));
}

__global__ void __launch_bounds__(threads)
    label_smoothing_backward_kernel(float* dlogits, const float* dloss, const int32_t* targets,
                                    int64_t columns, float factor) {
  const int64_t row = blockIdx.x;
  const float hit = factor * *dloss;
  const float share = hit / static_cast<float>(columns);
  for (int64_t i = threadIdx.x; i < columns; i += threads) {
    dlogits[row * columns + i] += (i == targets[row] ? hit : 0.0f) - share;
  }
}

}  // namespace

void label_smoothing_forward(const Context& context, const Tensor& losses, const Tensor& logits,
                             const Tensor& targets, float smoothing) {
  const int64_t columns = logits.size(1);
  visit_float(logits.dtype(), "smoothed_cross_entropy", [&]<class T>() {
    visit_access<neighbours<T>>(
        columns,
        [&]<int n, bool aligned>() {
          launch(context, "label_smoothing_forward", {blocks_for(targets.elements(), 1), threads},
                 label_smoothing_kernel<T, n, aligned>, losses.data<float>(), logits.data<T>(),
                 targets.data<int32_t>(), columns, smoothing);
        },
        logits.data<T>());
  });
}

void label_smoothing_backward(const Context& context, const Tensor& dlogits, const Tensor& dloss,
                              const Tensor& targets, float smoothing, float scale) {
  launch(context, "label_smoothing_backward", {blocks_for(targets.elements(), 1), threads},
         label_smoothing_backward_kernel, dlogits.data<float>(), dloss.data<float>(),
         targets.data<int32_t>(), dlogits.size(1), smoothing * scale);
}

}  // namespace tessera::cuda
