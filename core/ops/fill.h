// The launcher of fill, which gives every element of a tensor one value.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(fill, const Tensor& y, float value)

}  // namespace tessera
