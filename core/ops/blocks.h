// Loops over flat data on the CPU, in blocks of 256 elements. Threads split at blocks, so that
// which elements fall into a vector loop's body and which into its remainder never depends on the
// number of threads.
//
// In the loops that use this, `omp simd` promises that elements are independent, also where the
// destination is one of the sources, which the operations allow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/context.h"

namespace tessera::cpu {

inline constexpr int64_t block_elements = 256;

/// Calls body(begin, end) for contiguous ranges of [0, elements) that start on blocks.
template <class Body>
void parallel_blocks(int64_t elements, int64_t cost_per_element, Body&& body) {
  const int64_t blocks = (elements + block_elements - 1) / block_elements;
  parallel_ranges(blocks, block_elements * cost_per_element, [&](int64_t first, int64_t last) {
    body(first * block_elements, std::min(last * block_elements, elements));
  });
}

}  // namespace tessera::cpu
