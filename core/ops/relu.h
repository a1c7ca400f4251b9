// The launchers of relu.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(relu_forward, const Tensor& y, const Tensor& x)
TESSERA_KERNEL(relu_backward, const Tensor& dx, const Tensor& dy, const Tensor& y)

}  // namespace tessera
