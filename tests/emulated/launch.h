// Launches of the tests' kernels with arguments of other types, as core/cuda/kernel.cuh has them,
// but with CUDA's error as the result.
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

/// Another order of blocks and threads, as long as it lives.
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

/// Number of the seeds 0 ... 7 for which `wrong()` holds.
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
