// sum on CUDA: each block of 4096 elements is summed in f64, then the blocks' sums are added. The
// order of addition depends only on the number of elements.
#include "core/cuda/elementwise.cuh"
#include "core/ops/sum.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;
constexpr int64_t sum_block = 4096;  // elements

template <class T>
__global__ void __launch_bounds__(threads)
    sum_blocks_kernel(double* sums, const T* x, int64_t elements) {
  constexpr int count = sum_block / threads;
  const int64_t first = blockIdx.x * sum_block + threadIdx.x;
  float value[count];  // all loads are in flight before the first addition
  for (int i = 0; i < count; ++i) {
    const int64_t at = first + i * threads;
    value[i] = at < elements ? float(x[at]) : 0.0f;
  }
  double sum = 0;
  for (const float v : value) sum += double(v);
  const double total = block_sum_once<threads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(threads)
    sum_sums_kernel(float* y, const double* sums, int64_t count, float factor) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += threads) sum += sums[i];
  const double total = block_sum_once<threads>(sum);
  if (threadIdx.x == 0) *y = static_cast<float>(factor * total);
}

/// The gradient of every element of x.
struct ScaledGradient {
  const float* dy;
  float factor;
  __device__ float operator()() const { return factor * *dy; }
};

}  // namespace

void sum(const Context& context, const Tensor& y, const Tensor& x, float factor) {
  const unsigned blocks = blocks_for(x.elements(), sum_block);
  const Tensor scratch = context.workspace({int64_t{blocks} * 2});  // an f64 is as large as two f32
  auto* sums = static_cast<double*>(scratch.raw());
  visit_float(x.dtype(), "sum", [&]<class T>() {
    const T* in = x.data<T>();
    if (blocks == 0) return;
    launch(context, "sum", {blocks, threads}, sum_blocks_kernel<T>, sums, in, x.elements());
  });
  // If x is empty, this kernel writes zero.
  launch(context, "sum", {1, threads}, sum_sums_kernel, y.data<float>(), sums, blocks, factor);
}

void sum_backward(const Context& context, const Tensor& dx, const Tensor& dy, float factor) {
  visit_float(dx.dtype(), "sum", [&]<class T>() {
    map(context, "sum_backward", ScaledGradient{dy.data<float>(), factor}, dx.elements(),
        dx.data<T>());
  });
}

}  // namespace tessera::cuda
