// convert: y = x in another floating-point dtype, for any shape. Each element is rounded to the
// nearest value. The gradient is converted back to the dtype of x.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/blocks.h"
#include "core/ops/convert.h"
#include "core/ops/copy.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor convert(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const trace::Scope scope("convert");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  kernels::convert(current_context(x.device()), y, x);
  return record("convert", y, {x}, [](const Tensor& dy, InputGradients& grads) {
    kernels::convert(current_context(dy.device()), grads.destination(0), dy);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void convert(const Context& context, const Tensor& y, const Tensor& x) {
  TESSERA_CHECK(y.elements() == x.elements(), "convert: the source has {} elements, expected {}",
                x.elements(), y.elements());
  if (x.dtype() == y.dtype()) return copy(context, y, x);
  visit_float(x.dtype(), "convert", [&]<class From>() {
    visit_float(y.dtype(), "convert", [&]<class To>() {
      To* out = y.data<To>();
      const From* in = x.data<From>();
      parallel_blocks(x.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) out[i] = rounded<To>(float(in[i]));
      });
    });
  });
}

}  // namespace tessera::cpu
