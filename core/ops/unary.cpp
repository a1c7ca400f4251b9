// The unary elementwise operations: y = f(x), any shape. The expressions are in expressions.h.
#include "core/ops/unary.h"

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/blocks.h"
#include "core/ops/mathematics.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

Tensor unary(Unary which, const Tensor& x, Scalars scalars = {}) {
  Tensor result;
  visit_unary(which, [&]<class Expression>(const char* name) {
    using expressions::Keeps;
    const trace::Scope scope(name);
    const InUse in_use({&x});
    Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
    kernels::unary(current_context(x.device()), y, x, which, scalars);
    Tensor kept;
    if (Expression::keeps == Keeps::input) kept = saved(x);
    if (Expression::keeps == Keeps::output) kept = saved(y);
    result = record(name, y, {x}, [which, scalars, kept](const Tensor& dy, InputGradients& grads) {
      const bool keeps = kept.defined();
      const InUse in_backward({keeps ? &kept : nullptr});
      kernels::unary_backward(current_context(dy.device()), grads.destination(0), dy,
                              keeps ? kept : dy, which, scalars);
    });
  });
  return result;
}

}  // namespace

Tensor neg(const Tensor& x) { return unary(Unary::neg, x); }
Tensor exp(const Tensor& x) { return unary(Unary::exp, x); }
Tensor log(const Tensor& x) { return unary(Unary::log, x); }
Tensor sqrt(const Tensor& x) { return unary(Unary::sqrt, x); }
Tensor rsqrt(const Tensor& x) { return unary(Unary::rsqrt, x); }
Tensor reciprocal(const Tensor& x) { return unary(Unary::reciprocal, x); }
Tensor square(const Tensor& x) { return unary(Unary::square, x); }
Tensor abs(const Tensor& x) { return unary(Unary::abs, x); }
Tensor tanh(const Tensor& x) { return unary(Unary::tanh, x); }
Tensor sigmoid(const Tensor& x) { return unary(Unary::sigmoid, x); }
Tensor silu(const Tensor& x) { return unary(Unary::silu, x); }
Tensor softplus(const Tensor& x) { return unary(Unary::softplus, x); }
Tensor add(const Tensor& x, float number) { return unary(Unary::add_scalar, x, {number}); }
Tensor pow(const Tensor& x, float exponent) { return unary(Unary::pow, x, {exponent}); }

Tensor clamp(const Tensor& x, float low, float high) {
  TESSERA_CHECK(low <= high, "clamp: bounds are {} and {}, expected the lower one first", low,
                high);
  return unary(Unary::clamp, x, {low, high});
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

constexpr int64_t cost = 8;  // operations per element, roughly: neg needs fewer, pow more

}  // namespace

void unary(const Context&, const Tensor& y, const Tensor& x, Unary which, Scalars scalars) {
  visit_unary(which, [&]<class Expression>(const char* name) {
    visit_float(x.dtype(), name, [&]<class T>() {
      T* out = y.data<T>();
      const T* in = x.data<T>();
      parallel_blocks(x.elements(), cost, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          out[i] = rounded<T>(Expression::template value<Mathematics>(float(in[i]), scalars));
        }
      });
    });
  });
}

void unary_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& kept,
                    Unary which, Scalars scalars) {
  visit_unary(which, [&]<class Expression>(const char* name) {
    visit_float(dy.dtype(), name, [&]<class T>() {
      T* out = dx.data<T>();
      const T* grad = dy.data<T>();
      const T* of = kept.data<T>();
      parallel_blocks(dy.elements(), cost, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const float slope = Expression::template slope<Mathematics>(float(of[i]), scalars);
          out[i] = rounded<T>(expressions::gradient<Expression>(float(grad[i]), slope));
        }
      });
    });
  });
}

}  // namespace tessera::cpu
