// scale and scale_by on CUDA: y = factor * x.
#include "core/cuda/elementwise.cuh"
#include "core/ops/scale.h"

namespace tessera::cuda {

namespace {
struct Scale {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};
struct ScaleBy {
  const float* factor;
  __device__ float operator()(float x) const { return *factor * x; }
};
}  // namespace

void scale(const Context& context, const Tensor& y, const Tensor& x, float factor) {
  visit_float(y.dtype(), "scale", [&]<class T>() {
    map(context, "scale", Scale{factor}, y.elements(), y.data<T>(), x.data<T>());
  });
}

void scale_by(const Context& context, const Tensor& y, const Tensor& x, const Tensor& factor) {
  visit_float(x.dtype(), "scale_by", [&]<class From>() {
    visit_float(y.dtype(), "scale_by", [&]<class To>() {
      map(context, "scale_by", ScaleBy{factor.data<float>()}, y.elements(), y.data<To>(),
          x.data<From>());
    });
  });
}

}  // namespace tessera::cuda
