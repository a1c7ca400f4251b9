// add on CUDA: y = a + b, element by element.
#include "core/cuda/elementwise.cuh"
#include "core/ops/add.h"

namespace tessera::cuda {

namespace {
struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
}  // namespace

void add(const Context& context, const Tensor& y, const Tensor& a, const Tensor& b) {
  visit_float(y.dtype(), "add", [&]<class T>() {
    map(context, "add", Add{}, y.elements(), y.data<T>(), a.data<T>(), b.data<T>());
  });
}

}  // namespace tessera::cuda
