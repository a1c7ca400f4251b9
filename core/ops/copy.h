// The launcher of copy, from one tensor to another of its dtype.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(copy, const Tensor& y, const Tensor& x)

}  // namespace tessera
