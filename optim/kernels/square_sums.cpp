// block_square_sums: x (n) of any floating-point dtype -> sums (ceil(n / 256)), the fp64 sum of
// squares of each block of 256 elements. No autograd operation wraps this launcher. The norm of a
// gradient is the square root of the total of its block sums (step_end.cpp).
#include "core/ops/blocks.h"
#include "optim/kernels/square_sums.h"

namespace tessera::cpu {

namespace {

constexpr int64_t lanes = 16;

/// Adds the square of element i to lane i mod 16, and then adds the lanes pairwise. The code fixes
/// this order, because a block's sum must have the same bits on every rank.
template <class T>
double square_sum(const T* x, int64_t count) {
  double sum[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const double value = float(x[i + lane]);
      sum[lane] += value * value;  // exact product: at most 24 bits by 24 bits
    }
  }
  for (; i < count; ++i) sum[i % lanes] += double(float(x[i])) * double(float(x[i]));
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  }
  return sum[0];
}

}  // namespace

void block_square_sums(const Context&, std::span<double> sums, const Tensor& x) {
  const int64_t elements = x.elements();
  const int64_t blocks = (elements + block_elements - 1) / block_elements;
  TESSERA_CHECK(static_cast<int64_t>(sums.size()) == blocks,
                "block_square_sums: room for {} sums, expected {}", sums.size(), blocks);
  visit_float(x.dtype(), "block_square_sums", [&]<class T>() {
    const T* in = x.data<T>();
    parallel_blocks(elements, 1, [=](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += block_elements) {
        sums[static_cast<size_t>(at / block_elements)] =
            square_sum(in + at, std::min(block_elements, end - at));
      }
    });
  });
}

}  // namespace tessera::cpu
