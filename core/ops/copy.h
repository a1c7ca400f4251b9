// The launcher of copy, from one tensor to another of its dtype.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = x. Throws unless both have the same number of elements and the same dtype.
TESSERA_KERNEL(copy, const Tensor& y, const Tensor& x)

}  // namespace tessera
