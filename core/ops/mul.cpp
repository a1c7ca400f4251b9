// mul: y = a * b, element by element, equal shapes.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/blocks.h"
#include "core/ops/mul.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor mul(const Tensor& a, const Tensor& b) {
  TESSERA_CHECK(b.shape() == a.shape(), "mul: the second input has shape {}, expected {}",
                b.shape(), a.shape());
  TESSERA_CHECK(b.dtype() == a.dtype(), "mul: the second input has dtype {}, expected {}",
                dtype_name(b.dtype()), dtype_name(a.dtype()));
  const trace::Scope scope("mul");
  const InUse in_use({&a, &b});
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device());
  kernels::mul(current_context(a.device()), y, a, b);
  return record("mul", y, {a, b},
                [a = saved(a), b = saved(b)](const Tensor& dy, InputGradients& grads) {
                  const InUse in_backward(
                      {grads.wanted(1) ? &a : nullptr, grads.wanted(0) ? &b : nullptr});
                  const Context context = current_context(dy.device());
                  if (grads.wanted(0)) kernels::mul(context, grads.destination(0), dy, b);
                  if (grads.wanted(1)) kernels::mul(context, grads.destination(1), dy, a);
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void mul(const Context&, const Tensor& y, const Tensor& a, const Tensor& b) {
  visit_float(y.dtype(), "mul", [&]<class T>() {
    T* out = y.data<T>();
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    parallel_blocks(y.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] = rounded<T>(float(left[i]) * float(right[i]));
    });
  });
}

}  // namespace tessera::cpu
