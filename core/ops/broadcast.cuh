// Kernels over a BroadcastWalk. Each thread computes the offsets of its element in the walk's two
// tensors.
#pragma once

#include "core/cuda/elementwise.cuh"
#include "core/ops/broadcast.h"

namespace tessera::cuda {

/// Offsets of one element in the two tensors of a walk.
struct WalkPlaces {
  int64_t a;
  int64_t b;
};

__device__ inline WalkPlaces places_of(const BroadcastWalk& walk, int64_t element) {
  WalkPlaces places{0, 0};
  for (int dim = walk.rank; dim-- > 0;) {
    const auto at = static_cast<size_t>(dim);
    const int64_t index = element % walk.sizes[at];
    places.a += index * walk.a_strides[at];
    places.b += index * walk.b_strides[at];
    element /= walk.sizes[at];
  }
  return places;
}

template <class T, class F>
struct BroadcastValue {
  F f;
  T* y;
  const T* a;
  const T* b;
  __device__ void operator()(int64_t element, const WalkPlaces& at) const {
    y[element] = rounded<T>(f(float(a[at.a]), float(b[at.b])));
  }
};

template <class T, class F>
struct BroadcastGradient {
  F f;
  T* dx;
  const T* dy;
  const T* a;
  const T* b;
  __device__ void operator()(int64_t element, const WalkPlaces& at) const {
    dx[element] = rounded<T>(f(float(dy[element]), float(a[at.a]), float(b[at.b])));
  }
};

namespace detail {

inline constexpr int walk_threads = 256;

template <class Body>
__global__ void __launch_bounds__(walk_threads)
    walk_kernel(BroadcastWalk walk, int64_t elements, Body body) {
  const int64_t element = int64_t{blockIdx.x} * walk_threads + threadIdx.x;
  if (element < elements) body(element, places_of(walk, element));
}

}  // namespace detail

/// Calls body(element, places_of(walk, element)) for every element of the walk, with one thread for
/// each element.
template <class Body>
void map_walk(const Context& context, const char* name, const BroadcastWalk& walk, Body body) {
  const int64_t elements = walk.elements();
  if (elements == 0) return;
  launch(context, name, {blocks_for(elements, detail::walk_threads), detail::walk_threads},
         detail::walk_kernel<Body>, walk, elements, body);
}

}  // namespace tessera::cuda
