// slice: returns rows [begin, end) of the leading dimension of x. The result shares x's memory,
// except if x is a parameter. Then the rows are copied, because the parameter's memory may be
// released after the operation.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor slice(const Tensor& x, int64_t begin, int64_t end) {
  TESSERA_CHECK(x.rank() > 0, "slice: a scalar has no rows");
  TESSERA_CHECK(0 <= begin && begin <= end && end <= x.size(0),
                "slice: [{}, {}) is not a range of the {} rows of shape {}", begin, end, x.size(0),
                x.shape());
  const trace::Scope scope("slice");
  const InUse in_use({&x});
  Tensor y = x.rows(begin, end);
  if (x.leaf()) {
    const Tensor rows = y;
    y = Tensor::empty(rows.shape(), rows.dtype(), rows.device());
    kernels::copy(current_context(x.device()), y, rows);
  }
  return record("slice", y, {x},
                [begin, end](const Tensor& dy, InputGradients& grads) {
                  const Context context = current_context(dy.device());
                  const Tensor dx = grads.destination(0);
                  kernels::fill(context, dx.rows(0, begin), 0.0f);
                  kernels::copy(context, dx.rows(begin, end), dy);
                  kernels::fill(context, dx.rows(end, dx.size(0)), 0.0f);
                });
}

}  // namespace tessera::ops
