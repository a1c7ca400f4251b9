// The kernel launcher of copy, between tensors of one dtype.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = x. Throws unless x and y have equal dtypes and equally many elements.
TESSERA_KERNEL(copy, const Tensor& y, const Tensor& x)

}  // namespace tessera
