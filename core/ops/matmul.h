// The launcher of matmul, one for both devices: what differs is inside a product (core/product.h).
#pragma once

#include "core/context.h"

namespace tessera {

struct MatmulArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // add to the destination
};

namespace kernels {
/// y (..., m, n) = op(a) op(b), batched over equal leading dimensions; a or b may be 2-D for all of
/// them. y is f32 or of the operands' dtype. m is y's and n and k are b's: the rows of y and a may
/// be longer, and what they have behind is neither read nor written.
void matmul(const Context& context, const Tensor& y, const Tensor& a, const Tensor& b,
            MatmulArgs args);
}  // namespace kernels

}  // namespace tessera
