// The kernel launcher of transpose.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y (..., n, m) = x (..., m, n)
TESSERA_KERNEL(transpose, const Tensor& y, const Tensor& x)

}  // namespace tessera
