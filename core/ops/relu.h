// The kernel launchers of relu.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = max(x, 0), element by element.
TESSERA_KERNEL(relu_forward, const Tensor& y, const Tensor& x)
/// dx = dy where y > 0, and 0 elsewhere.
TESSERA_KERNEL(relu_backward, const Tensor& dx, const Tensor& dy, const Tensor& y)

}  // namespace tessera
