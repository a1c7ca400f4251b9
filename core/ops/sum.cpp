// sum: y [] = sum of x; mean: y [] = sum of x / elements. x may have any shape, but a mean of no
// elements is an error. y is f32 for every dtype of x, because losses are sums and means.
//
// Each block of 4096 elements is summed in f64, then the blocks' sums are added in order. The
// result does not depend on the number of threads.
//
// sum and mean over given dimensions use sum_to (broadcast.h), and their y has the dtype of x.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/broadcast.h"
#include "core/ops/dimensions.h"
#include "core/ops/fill.h"
#include "core/ops/sum.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
Tensor scaled_sum(const char* name, const Tensor& x, float factor) {
  const trace::Scope scope(name);
  const InUse in_use({&x});
  Tensor y = Tensor::empty({}, DType::f32, x.device());
  kernels::sum(current_context(x.device()), y, x, factor);
  return record(name, y, {x}, [factor](const Tensor& dy, InputGradients& grads) {
    kernels::sum_backward(current_context(dy.device()), grads.destination(0), dy, factor);
  });
}
}  // namespace

Tensor sum(const Tensor& x) { return scaled_sum("sum", x, 1.0f); }

Tensor mean(const Tensor& x) {
  TESSERA_CHECK(x.elements() > 0, "mean: shape {} has no elements", x.shape());
  return scaled_sum("mean", x, 1.0f / static_cast<float>(x.elements()));
}

namespace {

Tensor scaled_sum(const char* name, const Tensor& x, const Shape& ones, const Shape& shape,
                  float factor) {
  const trace::Scope scope(name);
  const InUse in_use({&x});
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::sum_to(current_context(x.device()), y.view(ones), x, factor);
  return record(name, y, {x}, [factor, ones](const Tensor& dy, InputGradients& grads) {
    const Tensor dx = grads.destination(0);
    kernels::copy_walk(current_context(dy.device()), dx, dy,
                       broadcast_walk(dx.shape(), ones, dx.shape()), factor);
  });
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keep) {
  const auto [ones, gone] = reduced_shapes("sum", x.shape(), dims);
  return scaled_sum("sum", x, ones, keep ? ones : gone, 1.0f);
}

Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keep) {
  const auto [ones, gone] = reduced_shapes("mean", x.shape(), dims);
  const int64_t count = ones.elements() == 0 ? 0 : x.elements() / ones.elements();
  TESSERA_CHECK(count > 0 || ones.elements() == 0,
                "mean: shape {} has no elements along the given dimensions", x.shape());
  const float factor = count == 0 ? 1.0f : 1.0f / static_cast<float>(count);
  return scaled_sum("mean", x, ones, keep ? ones : gone, factor);
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {
constexpr int64_t sum_block = 4096;

template <class T>
double block_sum(const T* x, int64_t begin, int64_t end) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = begin; i < end; ++i) total += double(float(x[i]));
  return total;
}
}  // namespace

void sum(const Context& context, const Tensor& y, const Tensor& x, float factor) {
  const int64_t blocks = (x.elements() + sum_block - 1) / sum_block;
  const Tensor scratch = context.workspace({blocks * 2});  // an f64 is as large as two f32
  double* sums = static_cast<double*>(scratch.raw());
  visit_float(x.dtype(), "sum", [&]<class T>() {
    const T* in = x.data<T>();
    parallel_ranges(blocks, sum_block, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * sum_block;
        sums[block] = block_sum(in, begin, std::min(begin + sum_block, x.elements()));
      }
    });
  });
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += sums[block];
  *y.data<float>() = static_cast<float>(factor * total);
}

void sum_backward(const Context& context, const Tensor& dx, const Tensor& dy, float factor) {
  fill(context, dx, factor * *dy.data<float>());
}

}  // namespace tessera::cpu
