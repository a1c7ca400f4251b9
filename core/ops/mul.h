// The launcher of mul.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(mul, const Tensor& y, const Tensor& a, const Tensor& b)

}  // namespace tessera
