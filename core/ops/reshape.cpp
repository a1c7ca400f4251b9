// reshape: returns x with another shape that has as many elements. The result shares x's memory, so
// there is no kernel. Only a parameter is copied, because the parameter's memory may be released
// after the operation.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/copy.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor reshape(const Tensor& x, const Shape& shape) {
  TESSERA_CHECK(shape.elements() == x.elements(),
                "reshape: shape {} has {} elements, expected {} as in shape {}", shape,
                shape.elements(), x.elements(), x.shape());
  const trace::Scope scope("reshape");
  const InUse in_use({&x});
  Tensor y = x.view(shape);
  if (x.leaf()) {
    y = Tensor::empty(shape, x.dtype(), x.device());
    kernels::copy(current_context(x.device()), y, x);
  }
  return record("reshape", y, {x},
                [before = x.shape()](const Tensor& dy, InputGradients& grads) {
                  grads.pass(0, dy.view(before));
                });
}

}  // namespace tessera::ops
