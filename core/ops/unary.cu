// The unary elementwise expressions on CUDA (core/ops/expressions.h).
#include "core/cuda/elementwise.cuh"
#include "core/ops/mathematics.cuh"
#include "core/ops/unary.h"

namespace tessera::cuda {

namespace {

template <class Expression>
struct Value {
  Scalars scalars;
  __device__ float operator()(float x) const {
    return Expression::template value<Mathematics>(x, scalars);
  }
};

template <class Expression>
struct Gradient {
  Scalars scalars;
  __device__ float operator()(float dy, float kept) const {
    return expressions::gradient<Expression>(
        dy, Expression::template slope<Mathematics>(kept, scalars));
  }
};

}  // namespace

void unary(const Context& context, const Tensor& y, const Tensor& x, Unary which,
           Scalars scalars) {
  visit_unary(which, [&]<class Expression>(const char* name) {
    visit_float(x.dtype(), name, [&]<class T>() {
      map(context, name, Value<Expression>{scalars}, x.elements(), y.data<T>(), x.data<T>());
    });
  });
}

void unary_backward(const Context& context, const Tensor& dx, const Tensor& dy,
                    const Tensor& kept, Unary which, Scalars scalars) {
  visit_unary(which, [&]<class Expression>(const char* name) {
    visit_float(dy.dtype(), name, [&]<class T>() {
      map(context, name, Gradient<Expression>{scalars}, dy.elements(), dx.data<T>(), dy.data<T>(),
          kept.data<T>());
    });
  });
}

}  // namespace tessera::cuda
