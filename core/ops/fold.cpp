// fold: accumulator (n) f32 = (first ? +0.0 : accumulator) + contribution (n). A launcher without
// an operation: the one addition that an ordered reduction is made of.
#include "core/kernels.h"
#include "core/ops/blocks.h"

namespace tessera::cpu {

void fold(const Context&, const Tensor& accumulator, const Tensor& contribution, bool first) {
  TESSERA_CHECK(contribution.elements() == accumulator.elements(),
                "fold: the contribution has {} elements, expected {}", contribution.elements(),
                accumulator.elements());
  visit_float(contribution.dtype(), "fold", [&]<class T>() {
    float* sum = accumulator.data<float>();
    const T* add = contribution.data<T>();
    parallel_blocks(accumulator.elements(), 1, [=](int64_t begin, int64_t end) {
      if (first) {
        // Not a copy: from +0.0, a -0.0 becomes +0.0, as in an accumulator that was zeroed.
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) sum[i] = 0.0f + float(add[i]);
      } else {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) sum[i] += float(add[i]);
      }
    });
  });
}

}  // namespace tessera::cpu
