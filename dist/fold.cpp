// fold: accumulator (n) = (first ? +0.0 : accumulator) + contribution (n). An ordered reduction is
// a sequence of these additions. fold adds in f32; a bf16 accumulator is rounded after every
// contribution. There is no autograd operation for this kernel.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/ops/blocks.h"
#include "dist/fold.h"

namespace tessera::cpu {

namespace {
/// Turns every -0.0 into +0.0. Few blocks have a -0.0. All others are only read, which is faster
/// than to write their values again.
void replace_negative_zeros(float* sum, int64_t begin, int64_t end) {
  constexpr int64_t block = 256;
  constexpr uint32_t negative_zero = 0x80000000u;
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = std::min(first + block, end);
    int32_t found = 0;
#pragma omp simd reduction(| : found)
    for (int64_t i = first; i < last; ++i) {
      found |= std::bit_cast<uint32_t>(sum[i]) == negative_zero ? 1 : 0;
    }
    if (found == 0) continue;
#pragma omp simd
    for (int64_t i = first; i < last; ++i) sum[i] = 0.0f + sum[i];
  }
}

template <class S, class T>
void fold_range(S* sum, const T* add, bool first, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float>) {
    if (first && sum == add) return replace_negative_zeros(sum, begin, end);
  }
  if (first) {
    // Adds to 0.0 instead of copying: -0.0 becomes +0.0, as with an accumulator that was zeroed.
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) sum[i] = rounded<S>(0.0f + float(add[i]));
  } else {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) sum[i] = rounded<S>(float(sum[i]) + float(add[i]));
  }
}
}  // namespace

void fold(const Context&, const Tensor& accumulator, const Tensor& contribution, bool first) {
  TESSERA_CHECK(contribution.elements() == accumulator.elements(),
                "fold: the contribution has {} elements, expected {}", contribution.elements(),
                accumulator.elements());
  TESSERA_CHECK(accumulator.dtype() == DType::f32 || accumulator.dtype() == DType::bf16,
                "fold: the accumulator has dtype {}, expected f32 or bf16",
                dtype_name(accumulator.dtype()));
  visit_float(accumulator.dtype(), "fold", [&]<class S>() {
    visit_float(contribution.dtype(), "fold", [&]<class T>() {
      S* sum = accumulator.data<S>();
      const T* add = contribution.data<T>();
      parallel_blocks(accumulator.elements(), 1, [=](int64_t begin, int64_t end) {
        fold_range(sum, add, first, begin, end);
      });
    });
  });
}

}  // namespace tessera::cpu
