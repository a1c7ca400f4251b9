// fill on CUDA: sets every element of y to a value.
#include "core/cuda/elementwise.cuh"
#include "core/ops/fill.h"

namespace tessera::cuda {

namespace {
struct Constant {
  float value;
  __device__ float operator()() const { return value; }
};
}  // namespace

void fill(const Context& context, const Tensor& y, float value) {
  visit_float(y.dtype(), "fill", [&]<class T>() {
    map(context, "fill", Constant{value}, y.elements(), y.data<T>());
  });
}

}  // namespace tessera::cuda
