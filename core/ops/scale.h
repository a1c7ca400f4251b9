// The launcher of scale.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)

}  // namespace tessera
