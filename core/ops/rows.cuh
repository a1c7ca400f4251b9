// Loops of kernels over the rows of a tensor. The threads of a warp or of a block share a row. A
// thread handles n neighbouring elements at a time, and continues `threads * n` elements further
// on.
//
// The row's length, the dtype and the stride of rows decide which elements a thread handles. The
// order of a sum depends on nothing else. The tensor's address decides only whether n neighbours
// are read in one access.
#pragma once

#include <cstdint>

#include "core/cuda/elementwise.cuh"

namespace tessera::cuda {

/// Loads n neighbouring elements: in one access if `aligned`, else one by one.
template <bool aligned, int n, class T>
__device__ inline Elements<T, n> load_elements(const T* from) {
  if constexpr (aligned) {
    return *reinterpret_cast<const Elements<T, n>*>(from);
  } else {
    Elements<T, n> result;
    unrolled<n>([&](int i) { result.value[i] = from[i]; });
    return result;
  }
}

template <class T, int n>
__device__ inline Floats<n> widened(const Elements<T, n>& elements) {
  Floats<n> result;
  unrolled<n>([&](int i) { result.value[i] = float(elements.value[i]); });
  return result;
}

/// Stores n neighbouring elements, each rounded to T: in one access if `aligned`.
template <bool aligned, int n, class T>
__device__ inline void store_elements(T* to, const Floats<n>& from) {
  if constexpr (aligned) {
    store<n>(to, from);
  } else {
    unrolled<n>([&](int i) { to[i] = rounded<T>(from.value[i]); });
  }
}

/// Calls body.operator()<n, aligned>() for rows that begin `stride` elements apart. n is `wide` if
/// the stride is a multiple of `wide`, else 1. `data` points to the first row of each tensor.
/// `aligned` is true if every row of these tensors can be accessed n elements at a time. A null
/// pointer counts as aligned.
template <int wide, class Body, class... T>
void visit_access(int64_t stride, Body&& body, const T*... data) {
  if (stride % wide != 0) {
    body.template operator()<1, true>();
  } else if ((aligned_for<wide>(data) && ...)) {
    body.template operator()<wide, true>();
  } else {
    body.template operator()<wide, false>();
  }
}

/// row_sum returns the sum, and row_max the maximum, of `value` over the threads that share a row:
/// a warp or a whole block. All of these threads must call the function, and all get the result.
template <int threads>
__device__ inline float row_sum(float value) {
  if constexpr (threads == warp_size) {
    return warp_sum(value);
  } else {
    __shared__ float scratch[threads / warp_size];
    return block_sum<threads>(value, scratch);
  }
}
template <int threads>
__device__ inline float row_max(float value) {
  if constexpr (threads == warp_size) {
    return warp_max(value);
  } else {
    __shared__ float scratch[threads / warp_size];
    return block_max<threads>(value, scratch);
  }
}

/// A thread's walk over a row.
template <int threads, int n>
struct RowWalk {
  int thread;  // index among the threads that share the row
  int64_t columns;

  /// Calls body(turn, at) for all elements [at, at + n) that this thread handles.
  ///   turns > 0   the loop is unrolled and turn is 0, 1, ...; `turns` must suffice for the row
  ///   turns = 0   a row may have any length; turn is always 0
  template <int turns, class Body>
  __device__ void each(const Body& body) const {
    if constexpr (turns > 0) {
      unrolled<turns>([&](int turn) {
        const int64_t at = int64_t{thread + turn * threads} * n;
        if (at < columns) body(turn, at);
      });
    } else {
      for (int64_t at = int64_t{thread} * n; at < columns; at += threads * n) body(0, at);
    }
  }
};

/// A thread's elements of a row.
///   turns > 0   the elements stay in registers: memory is read once; `turns` must suffice for the
///               row
///   turns = 0   the elements are read at each use; after the first use mostly from the L1 cache
template <class T, int threads, int n, bool aligned, int turns>
class RowPart {
 public:
  __device__ void load(const RowWalk<threads, n>& walk, const T* row) {
    if constexpr (turns > 0) {
      walk.template each<turns>(
          [&](int turn, int64_t at) { kept_[turn] = load_elements<aligned, n>(row + at); });
    } else {
      row_ = row;
    }
  }
  /// Returns the elements of turn `turn`, which begins with element `at`.
  __device__ Floats<n> get(int turn, int64_t at) const {
    if constexpr (turns > 0) {
      return widened(kept_[turn]);
    } else {
      return widened(load_elements<aligned, n>(row_ + at));
    }
  }
  /// Adds the elements of `other`, rounds the sums to T and writes them to row `sum`. get() then
  /// returns the rounded sums.
  __device__ void add(const RowWalk<threads, n>& walk, const T* other, T* sum) {
    RowPart added;
    added.load(walk, other);
    walk.template each<turns>([&](int turn, int64_t at) {
      Floats<n> values = get(turn, at);
      const Floats<n> more = added.get(turn, at);
      unrolled<n>([&](int i) { values.value[i] += more.value[i]; });
      store_elements<aligned>(sum + at, values);
      if constexpr (turns > 0) {
        unrolled<n>([&](int i) { kept_[turn].value[i] = rounded<T>(values.value[i]); });
      }
    });
    row_ = sum;
  }

 private:
  Elements<T, n> kept_[turns > 0 ? turns : 1];
  const T* row_ = nullptr;
};

}  // namespace tessera::cuda
