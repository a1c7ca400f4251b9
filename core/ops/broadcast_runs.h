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
template <class Body>
void parallel_runs(const BroadcastWalk& walk, int64_t cost_per_element, Body&& body) {
  const auto last = static_cast<size_t>(walk.rank - 1);
  const int64_t inner = walk.sizes[last];
  parallel_blocks(walk.elements(), cost_per_element, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t column = at % inner;
      const int64_t count = std::min(inner - column, end - at);
      int64_t a = column * walk.a_strides[last];
      int64_t b = column * walk.b_strides[last];
      int64_t row = at / inner;
      for (size_t dim = last; dim-- > 0;) {
        const int64_t index = row % walk.sizes[dim];
        a += index * walk.a_strides[dim];
        b += index * walk.b_strides[dim];
        row /= walk.sizes[dim];
      }
      body(at, a, b, count);
      at += count;
    }
  });
}

/// Calls body(a_step, b_step) with the strides of the walk's last dimension, each 0 or 1. The
/// strides are compile-time constants, so that loops over the dimension vectorise.
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
