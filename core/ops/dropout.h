// The kernel launcher of dropout.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "core/random.h"

namespace tessera {

/// Dropout keeps the elements whose 32-bit draw is at least `threshold`.
struct DropoutArgs {
  DropoutState state;
  uint64_t layer = 0;
  uint32_t threshold = 0;      // probability times 2^32, rounded down
  float keep_scale = 1;        // 1 / (1 - probability)
  int64_t elements_per_sample = 1;
};
/// y = x * keep_scale for elements that are kept, 0 for all others. The backward calls this
/// launcher with dx for y and dy for x.
TESSERA_KERNEL(dropout, const Tensor& y, const Tensor& x, DropoutArgs args)

}  // namespace tessera
