// The kernel launchers of the unary elementwise expressions (core/ops/expressions.h).
#pragma once

#include "core/dispatch.h"
#include "core/ops/expressions.h"

namespace tessera {

/// y = f(x), where f is the expression that `which` names. x and y have equal shapes; y may be x.
TESSERA_KERNEL(unary, const Tensor& y, const Tensor& x, Unary which, Scalars scalars)
/// dx = dy * slope(kept), where `slope` gives the derivative of f. `kept` is the tensor that the
/// expression keeps, x or y. If nothing is kept, the slope is a constant and `kept` is dy.
TESSERA_KERNEL(unary_backward, const Tensor& dx, const Tensor& dy, const Tensor& kept, Unary which,
               Scalars scalars)

}  // namespace tessera
