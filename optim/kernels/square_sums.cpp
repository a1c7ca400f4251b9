// block_square_sums: x (n) of any floating-point dtype -> sums (ceil(n / 256)), the fp64 sum of
// squares of each block of 256 elements. No autograd operation wraps this launcher. The norm of a
// gradient is the square root of the total of its block sums (step_end.cpp).
#include "core/ops/blocks.h"
#include "optim/kernels/square_sums.h"
#include "optim/kernels/square_sums_lanes.h"

namespace tessera::cpu {

void block_square_sums(const Context&, std::span<double> sums, const Tensor& x) {
  const int64_t elements = x.elements();
  const int64_t blocks = (elements + block_elements - 1) / block_elements;
  TESSERA_CHECK(static_cast<int64_t>(sums.size()) == blocks,
                "block_square_sums: room for {} sums, expected {}", sums.size(), blocks);
  visit_float(x.dtype(), "block_square_sums", [&]<class T>() {
    const T* in = x.data<T>();
    parallel_blocks(elements, 1, [=](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += block_elements) {
        double lanes[square_sum_lanes] = {};
        add_squares(lanes, in + at, 0, std::min(block_elements, end - at));
        sums[static_cast<size_t>(at / block_elements)] = add_lanes(lanes);
      }
    });
  });
}

}  // namespace tessera::cpu
