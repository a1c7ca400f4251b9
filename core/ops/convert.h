// The kernel launcher of convert, between floating-point dtypes.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = x, each element rounded to y's dtype.
TESSERA_KERNEL(convert, const Tensor& y, const Tensor& x)

}  // namespace tessera
