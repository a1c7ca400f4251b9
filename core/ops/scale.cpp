// scale: y = factor * x, any shape.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/blocks.h"
#include "core/ops/scale.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor scale(const Tensor& x, float factor) {
  const trace::Scope scope("scale");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::scale(current_context(x.device()), y, x, factor);
  return record("scale", y, {x}, [factor](const Tensor& dy, InputGradients& grads) {
    kernels::scale(current_context(dy.device()), grads.destination(0), dy, factor);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {
template <class To, class From>
void multiply(const Tensor& y, const Tensor& x, float factor) {
  To* out = y.data<To>();
  const From* in = x.data<From>();
  parallel_blocks(y.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) out[i] = rounded<To>(factor * float(in[i]));
  });
}
}  // namespace

void scale(const Context&, const Tensor& y, const Tensor& x, float factor) {
  visit_float(y.dtype(), "scale", [&]<class T>() { multiply<T, T>(y, x, factor); });
}

void scale_by(const Context&, const Tensor& y, const Tensor& x, const Tensor& factor) {
  const float value = *factor.data<float>();
  visit_float(x.dtype(), "scale_by", [&]<class From>() {
    visit_float(y.dtype(), "scale_by", [&]<class To>() { multiply<To, From>(y, x, value); });
  });
}

}  // namespace tessera::cpu
