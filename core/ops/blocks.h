// Loops over flat data on the CPU, in blocks of 256 elements. A loop computes its elements in SIMD
// vectors. If the last few elements do not fill a vector, they are computed one by one, which may
// give other bits than a vector would. A block is a whole number of vectors, and each block is
// computed by one thread. So for any number of threads, only the last elements of the data are
// computed one by one, and all results have the same bits.
//
// Loops over blocks may use `omp simd`, which promises the compiler that elements are independent.
// The promise holds even if an operation overwrites one of its sources, because iteration i then
// reads and writes only element i of this source.
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
