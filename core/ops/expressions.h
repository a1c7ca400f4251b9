// The table of elementwise expressions: the value in f32 for one element, and the slopes (the
// derivatives) by which backward multiplies the gradient. The loops of unary.cpp and binary.cpp and
// the kernels of unary.cu and binary.cu are written once for all expressions. A new expression
// therefore needs three lines: in a list of this file, in core/ops.h, and in unary.cpp or
// binary.cpp.
//
// In the expressions, M is the class with the device's functions exp, log, tanh, sqrt and pow
// (mathematics.h, mathematics.cuh).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.h"

#ifdef __CUDACC__
#define TESSERA_BOTH __host__ __device__
#else
#define TESSERA_BOTH
#endif

namespace tessera {

/// The scalar arguments of an expression: a number to add, an exponent, or two bounds.
struct Scalars {
  float first = 0;
  float second = 0;
};

// clang-format off

// y = f(x). The columns are the name, what is kept for backward (nothing, the input or the output),
// the value, and the slope as a function of k, the kept input or output. `c` are the Scalars. A NaN
// in x gives a NaN in y, except that pow(NaN, 0) is 1. The slope of abs at 0 is 0, as in PyTorch.
// The slope of clamp at its bounds is 1, as in PyTorch 1.13; in PyTorch 2.15 this slope is 0.
#define TESSERA_UNARY_EXPRESSIONS(X)                                                            \
  X(neg,        nothing, -x,                             -1.0f)                                 \
  X(exp,        output,  M::exp(x),                      k)                                     \
  X(log,        input,   M::log(x),                      1 / k)                                 \
  X(sqrt,       output,  M::sqrt(x),                     0.5f / k)                              \
  X(rsqrt,      output,  1 / M::sqrt(x),                 -0.5f * k * k * k)                     \
  X(reciprocal, output,  1 / x,                          -k * k)                                \
  X(square,     input,   x * x,                          2 * k)                                 \
  X(abs,        input,   fabsf(x),                       k > 0 ? 1.0f : k < 0 ? -1.0f : 0.0f)   \
  X(tanh,       output,  M::tanh(x),                     1 - k * k)                             \
  X(sigmoid,    output,  logistic<M>(x),                 k * (1 - k))                           \
  X(silu,       input,   x / (1 + M::exp(-x)),           silu_slope<M>(k))                      \
  X(softplus,   input,   log_one_plus_exp<M>(x, 0),      logistic<M>(k))                        \
  X(add_scalar, nothing, x + c.first,                    1.0f)                                  \
  X(pow,        input,   M::pow(x, c.first),             power_slope<M>(k, c.first))            \
  X(clamp,      input,   clamped(x, c.first, c.second),  k < c.first || k > c.second ? 0.0f : 1.0f)

// y = f(a, b), where a and b are broadcast. The columns are the name, the kind, the value, and the
// slopes with respect to a and b. The kinds are:
//   linear   the slopes are constants, so backward reads no input
//   curved   the slopes depend on the inputs, which backward reads
//   flat     the slopes are zero, so there is no backward
//
// The slope of div with respect to b is computed as -(a / b) / b. The equal form -a / (b * b) is
// not used, because b * b would underflow or overflow for many b. The gradient of a is computed as
// dy / b, not as dy times the slope (binary.cpp).
//
// bce_with_logits of a logit a and a target b in [0, 1] is defined as
//   -(b log(sigmoid(a)) + (1 - b) log(1 - sigmoid(a))).
// This is equal to log(1 + exp(a)) - a * b, which log_one_plus_exp computes without overflow.
#define TESSERA_BINARY_EXPRESSIONS(X)                                                           \
  X(add,     linear,  a + b,                      1.0f,                   1.0f)                 \
  X(sub,     linear,  a - b,                      1.0f,                   -1.0f)                \
  X(mul,     curved,  a * b,                      b,                      a)                    \
  X(div,     curved,  a / b,                      1 / b,                  -(a / b) / b)         \
  X(maximum, curved,  a > b || a != a ? a : b,    share_of_larger(a, b),  share_of_larger(b, a)) \
  X(minimum, curved,  a < b || a != a ? a : b,    share_of_larger(b, a),  share_of_larger(a, b)) \
  X(bce_with_logits, curved, log_one_plus_exp<M>(a, a * b), logistic<M>(a) - b, -a)             \
  X(equal,         flat, a == b ? 1.0f : 0.0f,    0.0f,                   0.0f)                 \
  X(not_equal,     flat, a != b ? 1.0f : 0.0f,    0.0f,                   0.0f)                 \
  X(less,          flat, a < b ? 1.0f : 0.0f,     0.0f,                   0.0f)                 \
  X(less_equal,    flat, a <= b ? 1.0f : 0.0f,    0.0f,                   0.0f)                 \
  X(greater,       flat, a > b ? 1.0f : 0.0f,     0.0f,                   0.0f)                 \
  X(greater_equal, flat, a >= b ? 1.0f : 0.0f,    0.0f,                   0.0f)                 \
  X(where_nonzero, curved, a != 0 ? b : 0.0f,     0.0f,                   a != 0 ? 1.0f : 0.0f) \
  X(where_zero,    curved, a == 0 ? b : 0.0f,     0.0f,                   a == 0 ? 1.0f : 0.0f)

// clang-format on

#define TESSERA_NAME(name, ...) name,
enum class Unary : uint8_t { TESSERA_UNARY_EXPRESSIONS(TESSERA_NAME) };
enum class Binary : uint8_t { TESSERA_BINARY_EXPRESSIONS(TESSERA_NAME) };
#undef TESSERA_NAME

namespace expressions {

template <class M>
TESSERA_BOTH inline float logistic(float x) {
  return 1 / (1 + M::exp(-x));
}

template <class M>
TESSERA_BOTH inline float silu_slope(float x) {
  const float s = logistic<M>(x);
  return s * (1 + x * (1 - s));
}

/// Returns log(1 + exp(x)) - less. Computes max(x, 0) - less + log(1 + exp(-|x|)), because exp(x)
/// could overflow. The rounding error of 1 + exp(-|x|) is corrected as in Kahan's log1p, so that
/// small results are accurate.
template <class M>
TESSERA_BOTH inline float log_one_plus_exp(float x, float less) {
  const float small = M::exp(x < 0 ? x : -x);
  const float sum = 1 + small;
  const float log_sum = sum == 1 ? small : M::log(sum) * (small / (sum - 1));
  return ((x < 0 ? 0 : x) - less) + log_sum;
}

template <class M>
TESSERA_BOTH inline float power_slope(float x, float exponent) {
  return exponent == 0 ? 0.0f : exponent * M::pow(x, exponent - 1);
}

TESSERA_BOTH inline float clamped(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}

/// Returns the slope of max(a, b) with respect to a. The slope is one half if a and b are equal.
TESSERA_BOTH inline float share_of_larger(float a, float b) {
  return a > b ? 1.0f : a == b ? 0.5f : 0.0f;
}

enum class Keeps : uint8_t { nothing, input, output };
enum class Kind : uint8_t { linear, curved, flat };

#define TESSERA_UNARY_STRUCT(name, kept, value_of_x, slope_of_k)                            \
  struct name {                                                                             \
    static constexpr Keeps keeps = Keeps::kept;                                             \
    template <class M>                                                                      \
    TESSERA_BOTH static float value(float x, [[maybe_unused]] Scalars c) {                  \
      return value_of_x;                                                                    \
    }                                                                                       \
    template <class M>                                                                      \
    TESSERA_BOTH static float slope([[maybe_unused]] float k, [[maybe_unused]] Scalars c) { \
      return slope_of_k;                                                                    \
    }                                                                                       \
  };
TESSERA_UNARY_EXPRESSIONS(TESSERA_UNARY_STRUCT)
#undef TESSERA_UNARY_STRUCT

#define TESSERA_BINARY_STRUCT(name, kind, value_of_both, slope_by_a, slope_by_b)            \
  struct name {                                                                             \
    static constexpr Kind curve = Kind::kind;                                               \
    template <class M>                                                                      \
    TESSERA_BOTH static float value(float a, float b) {                                     \
      return value_of_both;                                                                 \
    }                                                                                       \
    template <class M>                                                                      \
    TESSERA_BOTH static float slope_a([[maybe_unused]] float a, [[maybe_unused]] float b) { \
      return slope_by_a;                                                                    \
    }                                                                                       \
    template <class M>                                                                      \
    TESSERA_BOTH static float slope_b([[maybe_unused]] float a, [[maybe_unused]] float b) { \
      return slope_by_b;                                                                    \
    }                                                                                       \
  };
TESSERA_BINARY_EXPRESSIONS(TESSERA_BINARY_STRUCT)
#undef TESSERA_BINARY_STRUCT

/// True for an expression that selects its result: one of its inputs, or a constant.
template <class Expression>
inline constexpr bool selects = false;
template <>
inline constexpr bool selects<clamp> = true;
template <>
inline constexpr bool selects<maximum> = true;
template <>
inline constexpr bool selects<minimum> = true;
template <>
inline constexpr bool selects<where_nonzero> = true;
template <>
inline constexpr bool selects<where_zero> = true;

/// Returns dy * slope. But an input that an expression has not selected gets the gradient 0, even
/// if dy is infinite or NaN. For instance, in sqrt(clamp(x, 0, 1)) with x < 0, dy is the derivative
/// of sqrt at 0, which is infinite.
template <class Expression>
TESSERA_BOTH inline float gradient(float dy, float slope) {
  const float product = dy * slope;
  if constexpr (selects<Expression>) return slope == 0 ? 0.0f : product;
  return product;
}

}  // namespace expressions

/// Calls body.template operator()<Expression>(name) for the expression that `which` names.
template <class Body>
void visit_unary(Unary which, Body&& body) {
  switch (which) {
#define TESSERA_CASE(name, ...)                         \
  case Unary::name:                                     \
    body.template operator()<expressions::name>(#name); \
    return;
    TESSERA_UNARY_EXPRESSIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  fail("elementwise: there is no unary expression {}", static_cast<int>(which));
}

template <class Body>
void visit_binary(Binary which, Body&& body) {
  switch (which) {
#define TESSERA_CASE(name, ...)                         \
  case Binary::name:                                    \
    body.template operator()<expressions::name>(#name); \
    return;
    TESSERA_BINARY_EXPRESSIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  fail("elementwise: there is no binary expression {}", static_cast<int>(which));
}

/// Like visit_binary, but throws if the expression is not curved.
template <class Body>
void visit_curved(Binary which, Body&& body) {
  visit_binary(which, [&]<class Expression>(const char* name) {
    if constexpr (Expression::curve == expressions::Kind::curved) {
      body.template operator()<Expression>(name);
    } else {
      fail("elementwise: the slopes of {} are constants", name);
    }
  });
}

}  // namespace tessera
