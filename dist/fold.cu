// fold on CUDA: accumulator = (first ? +0.0 : accumulator) + contribution, added in f32.
#include "core/cuda/elementwise.cuh"
#include "dist/fold.h"

namespace tessera::cuda {

namespace {
struct FromZero {
  // Adds to 0.0 instead of copying: -0.0 becomes +0.0, as with an accumulator that was zeroed.
  __device__ float operator()(float contribution) const { return 0.0f + contribution; }
};
struct Accumulate {
  __device__ float operator()(float sum, float contribution) const { return sum + contribution; }
};
}  // namespace

void fold(const Context& context, const Tensor& accumulator, const Tensor& contribution,
          bool first) {
  TESSERA_CHECK(contribution.elements() == accumulator.elements(),
                "fold: the contribution has {} elements, expected {}", contribution.elements(),
                accumulator.elements());
  TESSERA_CHECK(accumulator.dtype() == DType::f32 || accumulator.dtype() == DType::bf16,
                "fold: the accumulator has dtype {}, expected f32 or bf16",
                dtype_name(accumulator.dtype()));
  const int64_t elements = accumulator.elements();
  visit_float(accumulator.dtype(), "fold", [&]<class S>() {
    visit_float(contribution.dtype(), "fold", [&]<class T>() {
      S* sum = accumulator.data<S>();
      const T* add = contribution.data<T>();
      if (first) {
        map(context, "fold", FromZero{}, elements, sum, add);
      } else {
        map(context, "fold", Accumulate{}, elements, sum, sum, add);
      }
    });
  });
}

}  // namespace tessera::cuda
