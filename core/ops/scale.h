// The launcher of scale.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = factor * x, element by element; y may be x.
TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)

}  // namespace tessera
