// GELU in its tanh approximation: the launchers, and the function and its derivative for the CPU
// loops of gelu.cpp.
//
//   gelu(x) = x/2 (1 + tanh(u)) = x sigmoid(2u),  u = sqrt(2/pi) (x + 0.044715 x^3)
//
// The code computes the sigmoid form, which costs one exp and keeps the small values of the
// negative tail. 1 + tanh(u) would round these values away.
#pragma once

#include "core/cpu/vector_math.h"
#include "core/dispatch.h"

namespace tessera {

/// y = gelu(x), element by element (Hendrycks and Gimpel, arXiv:1606.08415).
TESSERA_KERNEL(gelu_forward, const Tensor& y, const Tensor& x)
/// dx = dy * gelu'(x), element by element.
TESSERA_KERNEL(gelu_backward, const Tensor& dx, const Tensor& dy, const Tensor& x)

namespace detail {
inline constexpr float gelu_linear = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float gelu_cubic = 0.0713548162726f;      // 2 sqrt(2/pi) 0.044715

/// exp(-2u)
inline float gelu_exp(float x) {
  return exp_f32(-x * multiply_add(gelu_cubic, x * x, gelu_linear));
}
}  // namespace detail

inline float gelu_f32(float x) { return x / (1.0f + detail::gelu_exp(x)); }

/// d gelu(x) / dx
inline float gelu_slope_f32(float x) {
  // Far from the origin, the slope is 0 or 1. Without the bound, x^2 could overflow, and the result
  // would be NaN from 0 * infinity.
  x = clamp_magnitude(x, 16.0f);
  const float sigmoid = 1.0f / (1.0f + detail::gelu_exp(x));
  const float u2_slope = multiply_add(3.0f * detail::gelu_cubic, x * x, detail::gelu_linear);
  return multiply_add(x * u2_slope, sigmoid * (1.0f - sigmoid), sigmoid);
}

}  // namespace tessera
