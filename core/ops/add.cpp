// add: y = a + b, equal shapes.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/blocks.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor add(const Tensor& a, const Tensor& b) {
  TESSERA_CHECK(b.shape() == a.shape(), "add: the second input has shape {}, expected {}",
                b.shape(), a.shape());
  TESSERA_CHECK(b.dtype() == a.dtype(), "add: the second input has dtype {}, expected {}",
                dtype_name(b.dtype()), dtype_name(a.dtype()));
  const trace::Scope scope("add");
  const InUse in_use({&a, &b});
  Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device());
  kernels::add(current_context(a.device()), y, a, b);
  return record("add", y, {a, b}, [](const Tensor& dy, InputGradients& grads) {
    if (grads.wanted(0)) grads.pass(0, dy);
    if (grads.wanted(1)) grads.pass(1, dy);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void add(const Context&, const Tensor& y, const Tensor& a, const Tensor& b) {
  visit_float(y.dtype(), "add", [&]<class T>() {
    T* out = y.data<T>();
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    parallel_blocks(y.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] = rounded<T>(float(left[i]) + float(right[i]));
    });
  });
}

}  // namespace tessera::cpu
