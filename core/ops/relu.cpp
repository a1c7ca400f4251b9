// relu: y = max(x, 0), element by element, any shape. NaN stays NaN. The gradient is computed from
// y, which usually takes no extra memory: the next operation keeps y as its input anyway.
#include "core/autograd.h"
#include "core/image_ops.h"
#include "core/ops/blocks.h"
#include "core/ops/relu.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor relu(const Tensor& x) {
  const trace::Scope scope("relu");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::relu_forward(current_context(x.device()), y, x);
  return record("relu", y, {x}, [y = saved(y)](const Tensor& dy, InputGradients& grads) {
    kernels::relu_backward(current_context(dy.device()), grads.destination(0), dy, y);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void relu_forward(const Context&, const Tensor& y, const Tensor& x) {
  visit_float(x.dtype(), "relu", [&]<class T>() {
    T* out = y.data<T>();
    const T* in = x.data<T>();
    parallel_blocks(x.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float value = float(in[i]);
        out[i] = rounded<T>(value < 0 ? 0.0f : value);
      }
    });
  });
}

void relu_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& y) {
  visit_float(y.dtype(), "relu", [&]<class T>() {
    T* out = dx.data<T>();
    const T* grad = dy.data<T>();
    const T* result = y.data<T>();
    parallel_blocks(y.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        out[i] = rounded<T>(float(result[i]) > 0 ? float(grad[i]) : 0.0f);
      }
    });
  });
}

}  // namespace tessera::cpu
