// Loops over flat data on the CPU, in blocks of 256 elements. One thread processes a whole block.
// So a loop's split into whole vectors and a remainder never depends on the number of threads.
//
// Loops over blocks may use `omp simd`, which promises the compiler that elements are independent.
// The promise also holds if the destination is one of the sources, which operations allow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/context.h"

namespace tessera::cpu {

inline constexpr int64_t block_elements = 256;

/// Calls body(begin, end) in parallel, for contiguous ranges of [0, elements) that begin at
/// multiples of block_elements.
template <class Body>
void parallel_blocks(int64_t elements, int64_t cost_per_element, Body&& body) {
  const int64_t blocks = (elements + block_elements - 1) / block_elements;
  parallel_ranges(blocks, block_elements * cost_per_element, [&](int64_t first, int64_t last) {
    body(first * block_elements, std::min(last * block_elements, elements));
  });
}

}  // namespace tessera::cpu
