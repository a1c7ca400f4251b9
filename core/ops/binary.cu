// The binary elementwise expressions on CUDA (core/ops/expressions.h).
#include "core/cuda/elementwise.cuh"
#include "core/ops/binary.h"
#include "core/ops/broadcast.cuh"
#include "core/ops/mathematics.cuh"

namespace tessera::cuda {

namespace {

template <class Expression>
struct Value {
  __device__ float operator()(float a, float b) const {
    return Expression::template value<Mathematics>(a, b);
  }
};

template <class Expression>
struct Gradient {
  int input;
  __device__ float operator()(float dy, float a, float b) const {
    return expressions::gradient<Expression>(
        dy, input == 0 ? Expression::template slope_a<Mathematics>(a, b)
                       : Expression::template slope_b<Mathematics>(a, b));
  }
};

}  // namespace

void binary(const Context& context, const Tensor& y, const Tensor& a, const Tensor& b,
            Binary which) {
  const BroadcastWalk walk = broadcast_walk(y.shape(), a.shape(), b.shape());
  visit_binary(which, [&]<class Expression>(const char* name) {
    visit_float(y.dtype(), name, [&]<class T>() {
      const Value<Expression> value;
      if (walk.flat()) {
        map(context, name, value, y.elements(), y.data<T>(), a.data<T>(), b.data<T>());
      } else {
        map_walk(context, name, walk, BroadcastValue<T, Value<Expression>>{
                                          value, y.data<T>(), a.data<T>(), b.data<T>()});
      }
    });
  });
}

void binary_backward(const Context& context, const Tensor& dx, const Tensor& dy, const Tensor& a,
                     const Tensor& b, int input, Binary which) {
  const BroadcastWalk walk = broadcast_walk(dy.shape(), a.shape(), b.shape());
  visit_curved(which, [&]<class Expression>(const char* name) {
    visit_float(dy.dtype(), name, [&]<class T>() {
      const Gradient<Expression> gradient{input};
      if (walk.flat()) {
        map(context, name, gradient, dy.elements(), dx.data<T>(), dy.data<T>(), a.data<T>(),
            b.data<T>());
      } else {
        map_walk(context, name, walk,
                 BroadcastGradient<T, Gradient<Expression>>{gradient, dx.data<T>(), dy.data<T>(),
                                                            a.data<T>(), b.data<T>()});
      }
    });
  });
}

}  // namespace tessera::cuda
