// fold: accumulator = (first ? +0.0 : accumulator) + contribution, where both tensors have equally
// many elements. An ordered reduction is a sequence of these additions. fold adds in f32; a bf16
// accumulator is rounded after every contribution. There is no autograd operation for this kernel.
#include "core/ops/blocks.h"
#include "dist/fold.h"

namespace tessera::cpu {

namespace {
template <class S, class T>
void fold_range(S* sum, const T* add, bool first, int64_t begin, int64_t end) {
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
