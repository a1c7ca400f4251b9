// Loops over a BroadcastWalk on the CPU.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/ops/blocks.h"
#include "core/ops/broadcast.h"

namespace tessera::cpu {

/// Splits the walk's elements into runs [at, at + count), and calls body(at, a, b, count) for each
/// run, in parallel. The elements of a run are neighbours along the walk's last dimension. `a` and
/// `b` are the offsets of the run's first element in the two tensors.
///
/// The elements along the last dimension form a row. If threads share a row, they divide it at
/// multiples of block_elements from its beginning. So for any number of threads, only the last
/// elements of a row can be computed outside a full SIMD vector (core/ops/blocks.h says why this
/// matters).
template <class Body>
void parallel_runs(const BroadcastWalk& walk, int64_t cost_per_element, Body&& body) {
  const auto last = static_cast<size_t>(walk.rank - 1);
  const int64_t inner = walk.sizes[last];
  if (walk.elements() == 0) return;
  const int64_t row_blocks = (inner + block_elements - 1) / block_elements;
  const int64_t cost = std::min(inner, block_elements) * cost_per_element;
  const auto run = [&](int64_t row, int64_t begin, int64_t end) {
    int64_t a = begin * walk.a_strides[last];
    int64_t b = begin * walk.b_strides[last];
    int64_t rest = row;
    for (size_t dim = last; dim-- > 0;) {
      const int64_t index = rest % walk.sizes[dim];
      a += index * walk.a_strides[dim];
      b += index * walk.b_strides[dim];
      rest /= walk.sizes[dim];
    }
    body(row * inner + begin, a, b, end - begin);
  };
  parallel_ranges(walk.elements() / inner * row_blocks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end;) {
      const int64_t row = block / row_blocks;
      const int64_t first = block % row_blocks;
      const int64_t after = std::min(row_blocks, first + end - block);
      run(row, first * block_elements, std::min(after * block_elements, inner));
      block += after - first;
    }
  });
}

/// Calls body(a_step, b_step) with the strides of the walk's last dimension, each 0 or 1, as
/// compile-time constants, so that loops over the dimension vectorise. The walk must come from
/// broadcast_walk.
template <class Body>
void with_steps(const BroadcastWalk& walk, Body&& body) {
  using Zero = std::integral_constant<int64_t, 0>;
  using One = std::integral_constant<int64_t, 1>;
  const auto last = static_cast<size_t>(walk.rank - 1);
  if (walk.a_strides[last] == 0) {
    body(Zero(), One());
  } else if (walk.b_strides[last] == 0) {
    body(One(), Zero());
  } else {
    body(One(), One());
  }
}

}  // namespace tessera::cpu
