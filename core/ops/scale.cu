// scale on CUDA: y = factor * x.
#include "core/cuda/elementwise.cuh"
#include "core/ops/scale.h"

namespace tessera::cuda {

namespace {
struct Scale {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};
}  // namespace

void scale(const Context& context, const Tensor& y, const Tensor& x, float factor) {
  visit_float(y.dtype(), "scale", [&]<class T>() {
    map(context, "scale", Scale{factor}, y.elements(), y.data<T>(), x.data<T>());
  });
}

}  // namespace tessera::cuda
