// gelu on CUDA: y = gelu(x), dx = dy * gelu'(x), element by element.
#include "core/ops/gelu.cuh"

#include "core/cuda/elementwise.cuh"
#include "core/ops/gelu.h"

namespace tessera::cuda {

namespace {
template <class T>
struct Gelu {
  __device__ float operator()(float x) const { return GeluMath<T>::value(x); }
};
template <class T>
struct GeluBackward {
  __device__ float operator()(float dy, float x) const { return dy * GeluMath<T>::slope(x); }
};
}  // namespace

void gelu_forward(const Context& context, const Tensor& y, const Tensor& x) {
  visit_float(x.dtype(), "gelu", [&]<class T>() {
    map(context, "gelu_forward", Gelu<T>{}, x.elements(), y.data<T>(), x.data<T>());
  });
}

void gelu_backward(const Context& context, const Tensor& dx, const Tensor& dy, const Tensor& x) {
  visit_float(x.dtype(), "gelu", [&]<class T>() {
    map(context, "gelu_backward", GeluBackward<T>{}, x.elements(), dx.data<T>(), dy.data<T>(),
        x.data<T>());
  });
}

}  // namespace tessera::cuda
