// The kernel launchers of the binary elementwise expressions (core/ops/expressions.h).
#pragma once

#include "core/dispatch.h"
#include "core/ops/expressions.h"

namespace tessera {

/// y = f(a, b), where f is the expression that `which` names, and y has the shape that a and b are
/// broadcast to. y may be the same tensor as an input of y's shape.
TESSERA_KERNEL(binary, const Tensor& y, const Tensor& a, const Tensor& b, Binary which)
/// dx = dy * df/da if `input` is 0, or dy * df/db if `input` is 1. dx and dy have the shape that a
/// and b are broadcast to. Only for curved expressions (core/ops/expressions.h). Throws for linear
/// and flat expressions, whose derivatives are constants.
TESSERA_KERNEL(binary_backward, const Tensor& dx, const Tensor& dy, const Tensor& a,
               const Tensor& b, int input, Binary which)

}  // namespace tessera
