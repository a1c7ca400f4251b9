// The kernel launcher of add.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = a + b, element by element, for equal shapes and dtypes. y may be a or b.
TESSERA_KERNEL(add, const Tensor& y, const Tensor& a, const Tensor& b)

}  // namespace tessera
