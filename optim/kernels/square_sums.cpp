// block_square_sums: x (n) of any floating-point dtype -> sums (ceil(n / 256)), the fp64 sum of
// squares of each block of 256 elements. The norm of a gradient is the square root of the total of
// its block sums (step_end.cpp). The launcher also replaces each -0.0 in x by +0.0, as
// square_sums.h explains. It does so here, because no other code passes over the whole gradient
// between backward and the update. No autograd operation wraps this launcher.
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/ops/blocks.h"
#include "optim/kernels/square_sums.h"
#include "optim/kernels/square_sums_lanes.h"

namespace tessera::cpu {

namespace {
/// Turns every -0.0 of a block into +0.0. Most blocks have no -0.0. Such a block is only read,
/// because writing its values back would take longer.
template <class T>
void replace_negative_zeros(T* x, int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  constexpr auto negative_zero = static_cast<Bits>(Bits{1} << (8 * sizeof(T) - 1));
  int32_t found = 0;
#pragma omp simd reduction(| : found)
  for (int64_t i = 0; i < count; ++i) {
    found |= std::bit_cast<Bits>(x[i]) == negative_zero ? 1 : 0;
  }
  if (found == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    if (std::bit_cast<Bits>(x[i]) == negative_zero) x[i] = std::bit_cast<T>(Bits{0});
  }
}
}  // namespace

void block_square_sums(const Context&, std::span<double> sums, const Tensor& x) {
  const int64_t elements = x.elements();
  const int64_t blocks = (elements + block_elements - 1) / block_elements;
  TESSERA_CHECK(static_cast<int64_t>(sums.size()) == blocks,
                "block_square_sums: room for {} sums, expected {}", sums.size(), blocks);
  visit_float(x.dtype(), "block_square_sums", [&]<class T>() {
    T* values = x.data<T>();
    parallel_blocks(elements, 1, [=](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += block_elements) {
        const int64_t count = std::min(block_elements, end - at);
        replace_negative_zeros(values + at, count);
        double lanes[square_sum_lanes] = {};
        add_squares(lanes, values + at, 0, count);
        sums[static_cast<size_t>(at / block_elements)] = add_lanes(lanes);
      }
    });
  });
}

}  // namespace tessera::cpu
