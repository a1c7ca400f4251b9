// mul on CUDA: y = a * b, element by element.
#include "core/cuda/elementwise.cuh"
#include "core/ops/mul.h"

namespace tessera::cuda {

namespace {
struct Multiply {
  __device__ float operator()(float a, float b) const { return a * b; }
};
}  // namespace

void mul(const Context& context, const Tensor& y, const Tensor& a, const Tensor& b) {
  visit_float(y.dtype(), "mul", [&]<class T>() {
    map(context, "mul", Multiply{}, y.elements(), y.data<T>(), a.data<T>(), b.data<T>());
  });
}

}  // namespace tessera::cuda
