// The binary elementwise operations: y = f(a, b), where a and b are broadcast. The functions f are
// in expressions.h.
#include "core/ops/binary.h"

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/broadcast.h"
#include "core/ops/broadcast_runs.h"
#include "core/ops/mathematics.h"
#include "core/ops/unary.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

/// Writes the gradient of input number `input`, whose shape is `shape`. slopes(to) must fill `to`,
/// which has dy's shape, with dy times the derivative of y with respect to this input. If the input
/// was broadcast, its gradient is the sum of these values over the repeated dimensions.
template <class Slopes>
void give_gradient(InputGradients& grads, int input, const Shape& shape, const Tensor& dy,
                   const Slopes& slopes) {
  if (!grads.wanted(input)) return;
  const Context context = current_context(dy.device());
  if (shape == dy.shape()) return slopes(grads.destination(input));
  const Tensor whole = Tensor::empty(dy.shape(), dy.dtype(), dy.device(), Category::workspace);
  slopes(whole);
  kernels::sum_to(context, grads.destination(input), whole, 1.0f);
}

/// Writes the gradient of an input of add or sub: dy or, for the second input of sub, -dy. If the
/// input was broadcast, its gradient is the sum of these values over the repeated dimensions.
void linear_gradient(InputGradients& grads, int input, const Shape& shape, const Tensor& dy,
                     Binary which) {
  if (!grads.wanted(input)) return;
  const Context context = current_context(dy.device());
  const bool negative = which == Binary::sub && input == 1;
  if (shape != dy.shape()) {
    return kernels::sum_to(context, grads.destination(input), dy, negative ? -1.0f : 1.0f);
  }
  if (!negative) return grads.pass(input, dy);
  kernels::unary(context, grads.destination(input), dy, Unary::neg, Scalars{});
}

Tensor record_linear(const char* name, const Tensor& y, const Tensor& a, const Tensor& b,
                     Binary which) {
  const Shape a_shape = a.shape();
  const Shape b_shape = b.shape();
  return record(name, y, {a, b}, [=](const Tensor& dy, InputGradients& grads) {
    linear_gradient(grads, 0, a_shape, dy, which);
    linear_gradient(grads, 1, b_shape, dy, which);
  });
}

Tensor record_curved(const char* name, const Tensor& y, const Tensor& a, const Tensor& b,
                     Binary which) {
  const auto backward = [which, a = saved(a), b = saved(b)](const Tensor& dy,
                                                            InputGradients& grads) {
    // The gradient of mul with respect to one input reads only the other input. For all other
    // operations that are recorded here, InUse gets both inputs, although div's gradient with
    // respect to the dividend reads only the divisor.
    const bool crossed = which == Binary::mul;
    const InUse in_backward(
        {grads.wanted(1) || !crossed ? &a : nullptr, grads.wanted(0) || !crossed ? &b : nullptr});
    for (const int input : {0, 1}) {
      give_gradient(grads, input, (input == 0 ? a : b).shape(), dy, [&](const Tensor& dx) {
        const Context context = current_context(dy.device());
        if (crossed) return kernels::binary(context, dx, dy, input == 0 ? b : a, Binary::mul);
        // The slope 1 / b is infinite if |b| is below 2.9e-39, but dy / b can still be finite.
        if (which == Binary::div && input == 0) {
          return kernels::binary(context, dx, dy, b, Binary::div);
        }
        kernels::binary_backward(context, dx, dy, a, b, input, which);
      });
    }
  };
  return record(name, y, {a, b}, backward);
}

Tensor binary(Binary which, const Tensor& a, const Tensor& b) {
  Tensor result;
  visit_binary(which, [&]<class Expression>(const char* name) {
    const Shape shape = broadcast_shape(name, a.shape(), b.shape());
    TESSERA_CHECK(b.dtype() == a.dtype(), "{}: the second input has dtype {}, expected {}", name,
                  dtype_name(b.dtype()), dtype_name(a.dtype()));
    const trace::Scope scope(name);
    const InUse in_use({&a, &b});
    result = Tensor::empty(shape, a.dtype(), a.device());
    kernels::binary(current_context(a.device()), result, a, b, which);
    using expressions::Kind;
    if (Expression::curve == Kind::linear) result = record_linear(name, result, a, b, which);
    if (Expression::curve == Kind::curved) result = record_curved(name, result, a, b, which);
  });
  return result;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary(Binary::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary(Binary::sub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary(Binary::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return binary(Binary::div, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary(Binary::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary(Binary::minimum, a, b); }

Tensor equal(const Tensor& a, const Tensor& b) { return binary(Binary::equal, a, b); }
Tensor not_equal(const Tensor& a, const Tensor& b) { return binary(Binary::not_equal, a, b); }
Tensor less(const Tensor& a, const Tensor& b) { return binary(Binary::less, a, b); }
Tensor less_equal(const Tensor& a, const Tensor& b) { return binary(Binary::less_equal, a, b); }
Tensor greater(const Tensor& a, const Tensor& b) { return binary(Binary::greater, a, b); }
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return binary(Binary::greater_equal, a, b);
}

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  return add(binary(Binary::where_nonzero, mask, a), binary(Binary::where_zero, mask, b));
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& targets) {
  return mean(binary(Binary::bce_with_logits, logits, targets));
}

}  // namespace tessera::ops

namespace tessera::cpu {

void binary(const Context&, const Tensor& y, const Tensor& a, const Tensor& b, Binary which) {
  const BroadcastWalk walk = broadcast_walk(y.shape(), a.shape(), b.shape());
  visit_binary(which, [&]<class Expression>(const char* name) {
    visit_float(y.dtype(), name, [&]<class T>() {
      T* out = y.data<T>();
      const T* left = a.data<T>();
      const T* right = b.data<T>();
      with_steps(walk, [&](auto left_step, auto right_step) {
        parallel_runs(walk, 1, [=](int64_t at, int64_t from_a, int64_t from_b, int64_t count) {
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) {
            out[at + i] = rounded<T>(Expression::template value<Mathematics>(
                float(left[from_a + i * left_step]), float(right[from_b + i * right_step])));
          }
        });
      });
    });
  });
}

void binary_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& a,
                     const Tensor& b, int input, Binary which) {
  const BroadcastWalk walk = broadcast_walk(dy.shape(), a.shape(), b.shape());
  visit_curved(which, [&]<class Expression>(const char* name) {
    visit_float(dy.dtype(), name, [&]<class T>() {
      T* out = dx.data<T>();
      const T* grad = dy.data<T>();
      const T* left = a.data<T>();
      const T* right = b.data<T>();
      with_steps(walk, [&](auto left_step, auto right_step) {
        parallel_runs(walk, 4, [=](int64_t at, int64_t from_a, int64_t from_b, int64_t count) {
#pragma omp simd
          for (int64_t i = 0; i < count; ++i) {
            const float x = float(left[from_a + i * left_step]);
            const float z = float(right[from_b + i * right_step]);
            const float slope = input == 0 ? Expression::template slope_a<Mathematics>(x, z)
                                           : Expression::template slope_b<Mathematics>(x, z);
            out[at + i] = rounded<T>(expressions::gradient<Expression>(float(grad[at + i]), slope));
          }
        });
      });
    });
  });
}

}  // namespace tessera::cpu
