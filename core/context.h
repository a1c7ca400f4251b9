// The context of a kernel launch: the device, the stream, and scratch memory. On the CPU the stream
// is the calling thread, and loops are split over a team of OpenMP threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "core/tensor.h"

namespace tessera {

struct Context {
  Device device;
  void* stream = nullptr;  // cudaStream_t on CUDA, unused on the CPU

  /// Returns uninitialised scratch memory, counted in the workspace category. The memory is freed
  /// with the returned tensor.
  Tensor workspace(const Shape& shape, DType dtype = DType::f32) const {
    return Tensor::empty(shape, dtype, device, Category::workspace);
  }
};

/// Returns the calling thread's context for tensors on `device`. On CUDA its stream is the thread's
/// current stream.
Context current_context(Device device);

/// Sets the number of threads per rank for CPU kernels. The bits of a run's results can depend on
/// this number (docs/determinism.md).
void set_thread_count(int threads);
/// Returns the number of threads for CPU kernels that the calling thread launches.
int thread_count();

/// While the object lives, overrides the number of threads for kernels that the calling thread
/// launches. For example, the thread that makes MPI calls runs its kernels on one thread, because a
/// second team would take cores from the kernels of the main thread.
class ThreadCountScope {
 public:
  explicit ThreadCountScope(int threads);
  ~ThreadCountScope();
  ThreadCountScope(const ThreadCountScope&) = delete;
  ThreadCountScope& operator=(const ThreadCountScope&) = delete;

 private:
  int before_;
};

/// True if a loop over `items`, each of about `cost` elementary operations, is worth a team of
/// threads.
inline bool worth_a_team(int64_t items, int64_t cost) {
  return cost > 0 && items > 32767 / cost;  // items * cost >= 32768, but cannot overflow
}

/// Carries an exception out of an OpenMP parallel region, because OpenMP lets no exception leave a
/// region. guard() keeps the first exception, and rethrow() throws it after the region.
class TeamErrors {
 public:
  template <class Body>
  void guard(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      if (!taken_.test_and_set()) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic_flag taken_;
  std::exception_ptr error_;
};

/// Splits [0, items) into one contiguous range per thread, or uses a single range if the loop is
/// not worth a team. Calls body(begin, end) for each range that is not empty. The ranges depend
/// only on the arguments and the number of threads.
template <class Body>
void parallel_ranges(int64_t items, int64_t cost_per_item, Body&& body) {
  const int64_t threads = worth_a_team(items, cost_per_item) ? thread_count() : 1;
  const int64_t share = (items + threads - 1) / threads;
  if (threads == 1) {
    if (items > 0) body(int64_t{0}, items);
    return;
  }
  TeamErrors errors;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(threads))
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t begin = std::min(items, t * share);
    const int64_t end = std::min(items, begin + share);
    if (begin < end) errors.guard([&] { body(begin, end); });
  }
  errors.rethrow();
}

}  // namespace tessera
