// Loops of kernels over ReducedRuns. If runs are side by side (inner > 1), each run has one thread,
// so that neighbouring threads read neighbouring elements. If runs are contiguous, each run has a
// warp, or a block if the runs are long. The order of a sum depends on the runs alone.
//
//   struct Maximum {
//     template <int threads>
//     __device__ void operator()(const RunThread<threads>& run) const { run.each(...); }
//   };
//   map_runs(context, "max", runs, Maximum{...});
#pragma once

#include "core/ops/reduced_runs.h"
#include "core/ops/rows.cuh"

namespace tessera::cuda {

inline constexpr int run_block = 256;
/// Number of elements of the longest contiguous run that a warp handles.
inline constexpr int64_t warp_run = 1024;

/// One of the `threads` that share a run.
template <int threads>
struct RunThread {
  int64_t index;    // index of the run (core/ops/reduced_runs.h)
  int64_t first;    // index of the run's first element in the tensor
  int64_t step;     // distance between neighbouring elements of the run
  int64_t reduced;  // number of elements of the run
  int thread;

  /// Calls body(at) for each element in this thread's part of the run. `at` is the element's index
  /// in the tensor.
  template <class Body>
  __device__ void each(const Body& body) const {
    for (int64_t i = thread; i < reduced; i += threads) body(first + i * step);
  }
  /// Returns the sum of `value` over the threads that share the run. All of these threads must call
  /// sum, and all get the result.
  __device__ float sum(double value) const {
    if constexpr (threads == 1) {
      return static_cast<float>(value);
    } else {
      return row_sum<threads>(static_cast<float>(value));
    }
  }
  /// Returns the maximum of `value` over the threads that share the run, ignoring NaN as fmaxf
  /// does. All of these threads must call max, and all get the result.
  __device__ float max(float value) const {
    if constexpr (threads == 1) {
      return value;
    } else {
      return row_max<threads>(value);
    }
  }
};

namespace detail {

template <int threads, class Body>
__global__ void __launch_bounds__(run_block) run_kernel(ReducedRuns runs, Body body) {
  const int64_t index = int64_t{blockIdx.x} * (run_block / threads) + threadIdx.x / threads;
  if (index >= runs.outer * runs.inner) return;
  const int64_t row = index / runs.inner;
  body(RunThread<threads>{.index = index,
                          .first = row * runs.reduced * runs.inner + index % runs.inner,
                          .step = runs.inner,
                          .reduced = runs.reduced,
                          .thread = static_cast<int>(threadIdx.x) % threads});
}

}  // namespace detail

/// Calls body(RunThread) for every run, in each thread that shares the run.
template <class Body>
void map_runs(const Context& context, const char* name, const ReducedRuns& runs, Body body) {
  if (runs.count() == 0) return;
  const auto by = [&]<int threads>() {
    launch(context, name, {blocks_for(runs.count(), run_block / threads), run_block},
           detail::run_kernel<threads, Body>, runs, body);
  };
  if (runs.inner > 1) {
    by.template operator()<1>();
  } else if (runs.reduced <= warp_run) {
    by.template operator()<warp_size>();
  } else {
    by.template operator()<run_block>();
  }
}

}  // namespace tessera::cuda
