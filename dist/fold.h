// The addition of which an ordered reduction consists.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// accumulator = (first ? +0.0 : accumulator) + contribution, in f32, rounded to the accumulator's
/// dtype, which is f32 or bf16.
TESSERA_KERNEL(fold, const Tensor& accumulator, const Tensor& contribution, bool first)

}  // namespace tessera
