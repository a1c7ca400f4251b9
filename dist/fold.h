// One step of an ordered reduction, which adds contributions to a sum one after the other.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// accumulator = (first ? +0.0 : accumulator) + contribution. Adds in f32 and rounds to the
/// accumulator's dtype, f32 or bf16.
TESSERA_KERNEL(fold, const Tensor& accumulator, const Tensor& contribution, bool first)

}  // namespace tessera
