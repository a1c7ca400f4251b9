// gelu: y = gelu(x), element by element, any shape. The formula is in gelu.h.
#include "core/ops/gelu.h"

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/blocks.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor gelu(const Tensor& x) {
  const trace::Scope scope("gelu");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::gelu_forward(current_context(x.device()), y, x);
  return record("gelu", y, {x}, [x = saved(x)](const Tensor& dy, InputGradients& grads) {
    const InUse in_backward({&x});
    kernels::gelu_backward(current_context(dy.device()), grads.destination(0), dy, x);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void gelu_forward(const Context&, const Tensor& y, const Tensor& x) {
  visit_float(x.dtype(), "gelu", [&]<class T>() {
    T* out = y.data<T>();
    const T* in = x.data<T>();
    parallel_blocks(x.elements(), 16, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] = rounded<T>(gelu_f32(float(in[i])));
    });
  });
}

void gelu_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  visit_float(x.dtype(), "gelu", [&]<class T>() {
    T* out = dx.data<T>();
    const T* grad = dy.data<T>();
    const T* in = x.data<T>();
    parallel_blocks(x.elements(), 16, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        out[i] = rounded<T>(float(grad[i]) * gelu_slope_f32(float(in[i])));
      }
    });
  });
}

}  // namespace tessera::cpu
