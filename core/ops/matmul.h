// The kernel launcher of matmul, written once for both devices. The devices differ inside a product
// (core/product.h).
#pragma once

#include "core/context.h"

namespace tessera {

struct MatmulArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // add to the destination
};

namespace kernels {
/// y (..., m, n) = op(a) op(b), batched over equal leading dimensions. a or b may be 2-D, and is
/// then used for the whole batch. y is f32 or has the operands' dtype. m is taken from y, and n and
/// k from b. Rows of y and a may be longer than the product needs; the excess is not accessed.
void matmul(const Context& context, const Tensor& y, const Tensor& a, const Tensor& b,
            MatmulArgs args);
}  // namespace kernels

}  // namespace tessera
