// The launcher of add.
#pragma once

#include "core/dispatch.h"

namespace tessera {

TESSERA_KERNEL(add, const Tensor& y, const Tensor& a, const Tensor& b)

}  // namespace tessera
