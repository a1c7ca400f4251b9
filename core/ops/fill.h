// The kernel launcher of fill, which sets every element of a tensor to one value.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(fill, const Tensor& y, float value)

}  // namespace tessera
