// The launchers of the binary elementwise expressions (core/ops/expressions.h).
#pragma once

#include "core/dispatch.h"
#include "core/ops/expressions.h"

namespace tessera {

/// y = f(a, b), where y has the shape that both are broadcast to. y may be one of the inputs if
/// that has y's shape.
TESSERA_KERNEL(binary, const Tensor& y, const Tensor& a, const Tensor& b, Binary which)
/// dx = dy * the slope by input 0 (a) or 1 (b); dx has the shape of dy, to which a and b are
/// broadcast.
TESSERA_KERNEL(binary_backward, const Tensor& dx, const Tensor& dy, const Tensor& a,
               const Tensor& b, int input, Binary which)

}  // namespace tessera
