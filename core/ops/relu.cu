// relu on CUDA: y = max(x, 0), dx = dy where y > 0, element by element.
#include "core/cuda/elementwise.cuh"
#include "core/ops/relu.h"

namespace tessera::cuda {

namespace {
struct Relu {
  __device__ float operator()(float x) const { return x < 0 ? 0.0f : x; }
};
struct ReluBackward {
  __device__ float operator()(float dy, float y) const { return y > 0 ? dy : 0.0f; }
};
}  // namespace

void relu_forward(const Context& context, const Tensor& y, const Tensor& x) {
  visit_float(x.dtype(), "relu", [&]<class T>() {
    map(context, "relu_forward", Relu{}, x.elements(), y.data<T>(), x.data<T>());
  });
}

void relu_backward(const Context& context, const Tensor& dx, const Tensor& dy, const Tensor& y) {
  visit_float(y.dtype(), "relu", [&]<class T>() {
    map(context, "relu_backward", ReluBackward{}, y.elements(), dx.data<T>(), dy.data<T>(),
        y.data<T>());
  });
}

}  // namespace tessera::cuda
