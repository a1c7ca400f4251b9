// The table of elementwise expressions: what is computed in f32 for one element, and the slopes
// that backward multiplies the gradient with. The loops of unary.cpp and binary.cpp and the kernels
// of unary.cu and binary.cu are written once and take any of them, so that a new expression is a
// struct here, a line of its list, and a line in core/ops.h.
//
// M is the device's mathematics: exp, log, tanh, sqrt, pow.
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

/// y = f(x). The names are those of the structs below.
enum class Unary : uint8_t {
  neg,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  abs,
  tanh,
  sigmoid,
  silu,
  add_scalar,
  pow,
  clamp
};

/// y = f(a, b), broadcast against each other.
enum class Binary : uint8_t { add, sub, mul, div, maximum, minimum };

/// What an expression has besides its elements: a number to add, an exponent, two bounds.
struct Scalars {
  float first = 0;
  float second = 0;
};

namespace expressions {

/// Which tensor the slope of a unary expression is a function of, and so what backward keeps.
enum class Keeps : uint8_t { nothing, input, output };

struct neg {
  static constexpr Keeps keeps = Keeps::nothing;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return -x;
  }
  template <class M>
  TESSERA_BOTH static float slope(float, Scalars) {
    return -1;
  }
};

struct exp {
  static constexpr Keeps keeps = Keeps::output;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return M::exp(x);
  }
  template <class M>
  TESSERA_BOTH static float slope(float y, Scalars) {
    return y;
  }
};

struct log {
  static constexpr Keeps keeps = Keeps::input;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return M::log(x);
  }
  template <class M>
  TESSERA_BOTH static float slope(float x, Scalars) {
    return 1 / x;
  }
};

struct sqrt {
  static constexpr Keeps keeps = Keeps::output;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return M::sqrt(x);
  }
  template <class M>
  TESSERA_BOTH static float slope(float y, Scalars) {
    return 0.5f / y;
  }
};

struct rsqrt {
  static constexpr Keeps keeps = Keeps::output;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return 1 / M::sqrt(x);
  }
  template <class M>
  TESSERA_BOTH static float slope(float y, Scalars) {
    return -0.5f * y * y * y;
  }
};

struct reciprocal {
  static constexpr Keeps keeps = Keeps::output;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return 1 / x;
  }
  template <class M>
  TESSERA_BOTH static float slope(float y, Scalars) {
    return -y * y;
  }
};

struct square {
  static constexpr Keeps keeps = Keeps::input;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return x * x;
  }
  template <class M>
  TESSERA_BOTH static float slope(float x, Scalars) {
    return 2 * x;
  }
};

struct abs {
  static constexpr Keeps keeps = Keeps::input;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return x < 0 ? -x : x;
  }
  template <class M>
  TESSERA_BOTH static float slope(float x, Scalars) {
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;  // 0 at 0, as PyTorch has it
  }
};

struct tanh {
  static constexpr Keeps keeps = Keeps::output;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return M::tanh(x);
  }
  template <class M>
  TESSERA_BOTH static float slope(float y, Scalars) {
    return 1 - y * y;
  }
};

struct sigmoid {
  static constexpr Keeps keeps = Keeps::output;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return 1 / (1 + M::exp(-x));
  }
  template <class M>
  TESSERA_BOTH static float slope(float y, Scalars) {
    return y * (1 - y);
  }
};

struct silu {
  static constexpr Keeps keeps = Keeps::input;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars) {
    return x / (1 + M::exp(-x));
  }
  template <class M>
  TESSERA_BOTH static float slope(float x, Scalars) {
    const float s = 1 / (1 + M::exp(-x));
    return s * (1 + x * (1 - s));
  }
};

struct add_scalar {
  static constexpr Keeps keeps = Keeps::nothing;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars c) {
    return x + c.first;
  }
  template <class M>
  TESSERA_BOTH static float slope(float, Scalars) {
    return 1;
  }
};

struct pow {
  static constexpr Keeps keeps = Keeps::input;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars c) {
    return M::pow(x, c.first);
  }
  template <class M>
  TESSERA_BOTH static float slope(float x, Scalars c) {
    return c.first == 0 ? 0.0f : c.first * M::pow(x, c.first - 1);
  }
};

struct clamp {
  static constexpr Keeps keeps = Keeps::input;
  template <class M>
  TESSERA_BOTH static float value(float x, Scalars c) {
    return x < c.first ? c.first : x > c.second ? c.second : x;  // NaN stays NaN
  }
  template <class M>
  TESSERA_BOTH static float slope(float x, Scalars c) {
    return x < c.first || x > c.second ? 0.0f : 1.0f;
  }
};

// Of two inputs. `linear`: the slopes are the same everywhere, so that backward reads neither.

struct add {
  static constexpr bool linear = true;
  TESSERA_BOTH static float value(float a, float b) { return a + b; }
  TESSERA_BOTH static float slope_a(float, float) { return 1; }
  TESSERA_BOTH static float slope_b(float, float) { return 1; }
};

struct sub {
  static constexpr bool linear = true;
  TESSERA_BOTH static float value(float a, float b) { return a - b; }
  TESSERA_BOTH static float slope_a(float, float) { return 1; }
  TESSERA_BOTH static float slope_b(float, float) { return -1; }
};

struct mul {
  static constexpr bool linear = false;
  TESSERA_BOTH static float value(float a, float b) { return a * b; }
  TESSERA_BOTH static float slope_a(float, float b) { return b; }
  TESSERA_BOTH static float slope_b(float a, float) { return a; }
};

struct div {
  static constexpr bool linear = false;
  TESSERA_BOTH static float value(float a, float b) { return a / b; }
  TESSERA_BOTH static float slope_a(float, float b) { return 1 / b; }
  TESSERA_BOTH static float slope_b(float a, float b) { return -a / (b * b); }
};

// Where both are equal each takes half of the gradient, as in PyTorch. NaN is handed on.

struct maximum {
  static constexpr bool linear = false;
  TESSERA_BOTH static float value(float a, float b) { return a > b || a != a ? a : b; }
  TESSERA_BOTH static float slope_a(float a, float b) {
    return a > b ? 1.0f : a == b ? 0.5f : 0.0f;
  }
  TESSERA_BOTH static float slope_b(float a, float b) { return slope_a(b, a); }
};

struct minimum {
  static constexpr bool linear = false;
  TESSERA_BOTH static float value(float a, float b) { return a < b || a != a ? a : b; }
  TESSERA_BOTH static float slope_a(float a, float b) { return maximum::slope_a(b, a); }
  TESSERA_BOTH static float slope_b(float a, float b) { return maximum::slope_a(a, b); }
};

}  // namespace expressions

// The lists of both kinds.
#define TESSERA_UNARY_EXPRESSIONS(X)                                                       \
  X(neg)                                                                                   \
  X(exp) X(log) X(sqrt) X(rsqrt) X(reciprocal) X(square) X(abs) X(tanh) X(sigmoid) X(silu) \
      X(add_scalar) X(pow) X(clamp)
#define TESSERA_BINARY_EXPRESSIONS(X) X(add) X(sub) X(mul) X(div) X(maximum) X(minimum)

/// body.operator()<Expression>(name)
template <class Body>
void visit_unary(Unary which, Body&& body) {
  switch (which) {
#define TESSERA_CASE(name)                              \
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
#define TESSERA_CASE(name)                              \
  case Binary::name:                                    \
    body.template operator()<expressions::name>(#name); \
    return;
    TESSERA_BINARY_EXPRESSIONS(TESSERA_CASE)
#undef TESSERA_CASE
  }
  fail("elementwise: there is no binary expression {}", static_cast<int>(which));
}

}  // namespace tessera
