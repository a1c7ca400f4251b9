// Launches kernels in tests. As in core/cuda/kernel.cuh, arguments are converted to the types of
// the kernel's parameters. In contrast to core/cuda/kernel.cuh, a CUDA error is returned, not
// thrown.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>
#include <vector>

#include "emulated/control.h"

namespace emulated_tests {

struct Shape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

template <class... Params, class... Args>
cudaError_t launch(Shape shape, void (*kernel)(Params...), Args... args) {
  std::tuple<Params...> values{static_cast<Params>(args)...};
  return std::apply(
      [&](Params&... value) {
        std::vector<void*> pointers{&value...};
        return cudaLaunchKernel(kernel, shape.grid, shape.block, pointers.data(),
                                shape.shared_bytes, shape.stream);
      },
      values);
}

/// While an object of this class exists, the emulated device runs blocks and threads in the order
/// that `seed` gives.
class OrderSeed {
 public:
  explicit OrderSeed(uint64_t seed) : before_(emulated::order_seed()) {
    emulated::set_order_seed(seed);
  }
  ~OrderSeed() { emulated::set_order_seed(before_); }
  OrderSeed(const OrderSeed&) = delete;
  OrderSeed& operator=(const OrderSeed&) = delete;

 private:
  uint64_t before_;
};

/// While an object of this class exists, streams are deferred (emulated/deferred.h): work is queued
/// and runs later. Work that the host does not wait for runs after `patience_ms` at the latest.
class StreamSeed {
 public:
  explicit StreamSeed(uint64_t seed, int patience_ms = 600'000) {
    emulated::set_stream_seed(seed, patience_ms);
  }
  ~StreamSeed() { emulated::set_stream_seed(0); }
  StreamSeed(const StreamSeed&) = delete;
  StreamSeed& operator=(const StreamSeed&) = delete;
};

/// Calls `wrong` with each of the order seeds 0 to 7. Returns how often the result was true.
template <class Wrong>
int seeds_where(Wrong wrong) {
  int found = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const OrderSeed order(seed);
    if (wrong()) ++found;
  }
  return found;
}

}  // namespace emulated_tests
