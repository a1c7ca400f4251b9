// Elementwise kernels: y[i] = f(x0[i], x1[i], ...) over flat memory of any mix of dtypes, computed
// in f32 and rounded once.
//
//   struct Add {
//     __device__ float operator()(float a, float b) const { return a + b; }
//   };
//   map(context, "add", Add{}, elements, y, a, b);
//
// The destination may be one of the sources: a thread reads each element before it overwrites it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/cuda/kernel.cuh"

namespace tessera::cuda {

/// n neighbouring elements in the registers of a thread, as f32.
template <int n>
struct Floats {
  float value[n];
};

/// n neighbouring elements in memory, read or written in one access.
template <class T, int n>
struct alignas(sizeof(T) * n) Elements {
  T value[n];
};

/// The number of neighbouring elements that a thread reads or writes in one access. An access to
/// elements of the widest type has 16 bytes. An access to a narrower type has fewer bytes, but the
/// accesses of a warp still leave no gaps.
template <class... T>
inline constexpr int neighbours = 16 / static_cast<int>(std::max({sizeof(T)...}));

/// True if n neighbours can be read in one access at `data`, and at every nth element after `data`.
template <int n, class T>
bool aligned_for(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % (sizeof(T) * n) == 0;
}

template <int n, class T>
__device__ inline Floats<n> load(const T* from) {
  const auto elements = *reinterpret_cast<const Elements<T, n>*>(from);
  Floats<n> result;
  for (int k = 0; k < n; ++k) result.value[k] = float(elements.value[k]);
  return result;
}

template <int n, class T>
__device__ inline void store(T* to, const Floats<n>& from) {
  Elements<T, n> elements;
  for (int k = 0; k < n; ++k) elements.value[k] = rounded<T>(from.value[k]);
  *reinterpret_cast<Elements<T, n>*>(to) = elements;
}

/// Calls body(0), ..., body(count - 1), always unrolled. In a plain loop that the compiler does not
/// unroll, an array that the loop variable indexes would be in memory instead of registers.
template <int count, class Body>
__device__ inline void unrolled(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (body(i), ...);
  }(std::make_integer_sequence<int, count>());
}

namespace detail {

inline constexpr int map_threads = 256;
// The number of blocks that a multiprocessor runs at the same time. 5 blocks leave 48 registers per
// thread, enough for every expression. 8 blocks would leave 32, and some expressions would spill.
inline constexpr int map_resident = 5;

// The number of times that a thread loads n neighbours of each source. n is 1 if some address is
// not aligned. All loads come before the first store (except in a block that reaches beyond the
// last element), to keep enough loads in flight. Two 16-byte loads of each of 1,280 threads (5
// blocks) are 41 KB per multiprocessor. An H200 needs only 29 KB in flight: 4.8 TB/s times a
// latency of about 0.8 us, divided by 132 multiprocessors.
template <int n>
inline constexpr int map_turns = n == 1 ? 8 : 2;

template <int n>
inline constexpr int64_t map_block = int64_t{map_threads} * map_turns<n> * n;  // elements

template <int n, class F, class... In>
__device__ inline Floats<n> apply(const F& f, const In&... in) {
  Floats<n> result;
  unrolled<n>([&](int k) { result.value[k] = f(in.value[k]...); });
  return result;
}

template <int n, class F, class Y, class... X>
__global__ void __launch_bounds__(map_threads, map_resident)
    map_kernel(F f, int64_t elements, Y* y, const X*... x) {
  constexpr int64_t stride = int64_t{map_threads} * n;
  const int64_t block = blockIdx.x * map_block<n>;
  const int64_t first = block + int64_t{threadIdx.x} * n;
  if (block + map_block<n> <= elements) {
    Floats<n> result[map_turns<n>];
    unrolled<map_turns<n>>([&](int turn) {
      result[turn] = apply<n>(f, load<n>(x + first + turn * stride)...);
    });
    unrolled<map_turns<n>>([&](int turn) {
      store<n>(y + first + turn * stride, result[turn]);
    });
    return;
  }
  for (int64_t i = first; i < std::min(elements, block + map_block<n>); i += stride) {
    if (i + n <= elements) {
      store<n>(y + i, apply<n>(f, load<n>(x + i)...));
    } else {
      for (int64_t j = i; j < elements; ++j) store<1>(y + j, apply<1>(f, load<1>(x + j)...));
    }
  }
}

}  // namespace detail

/// y[i] = rounded<Y>(f(float(x[i])...)) for i in [0, elements). f is a struct with a const
/// `__device__ float operator()`, copied to the device.
template <class F, class Y, class... X>
void map(const Context& context, const char* name, F f, int64_t elements, Y* y, const X*... x) {
  if (elements == 0) return;
  constexpr int n = neighbours<Y, X...>;
  void (*kernel)(F, int64_t, Y*, const X*...) = detail::map_kernel<1, F, Y, X...>;
  int64_t per_block = detail::map_block<1>;
  if ((aligned_for<n>(y) && ... && aligned_for<n>(x))) {
    kernel = detail::map_kernel<n, F, Y, X...>;
    per_block = detail::map_block<n>;
  }
  launch(context, name, {blocks_for(elements, per_block), detail::map_threads}, kernel, f, elements,
         y, x...);
}

}  // namespace tessera::cuda
