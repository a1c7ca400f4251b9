// GELU and its derivative for kernels. gelu.h has the formula and defines u.
#pragma once

#include "core/cuda/approximate.cuh"
#include "core/cuda/kernel.cuh"
#include "core/ops/gelu.h"

namespace tessera::cuda {

/// GELU of values of type T. If T is float, uses accurate functions. If T has 16 bits, uses faster,
/// approximate functions, so that memory limits the speed of a kernel and arithmetic does not. The
/// rounding to T hides the error of the approximation.
template <class T>
struct GeluMath {
  static constexpr bool approximate = sizeof(T) == 2;

  /// Returns 1 + exp(-2u), the reciprocal of sigmoid(2u).
  __device__ static float denominator(float x) {
    if constexpr (approximate) {
      constexpr float log2_e = 1.44269504f;
      constexpr float linear = log2_e * tessera::detail::gelu_linear;
      constexpr float cubic = log2_e * tessera::detail::gelu_cubic;
      return 1.0f + exp2_approximate(-x * fmaf(cubic, x * x, linear));
    } else {
      return 1.0f + expf(-x * fmaf(tessera::detail::gelu_cubic, x * x,
                                   tessera::detail::gelu_linear));
    }
  }

  __device__ static float divide(float a, float b) {
    if constexpr (approximate) return divide_approximate(a, b);
    return a / b;
  }

  __device__ static float value(float x) { return divide(x, denominator(x)); }

  /// d gelu(x) / dx
  __device__ static float slope(float x) {
    constexpr float bound = 16.0f;  // as in gelu_slope_f32; NaN stays NaN
    x = fabsf(x) > bound ? copysignf(bound, x) : x;
    const float sigmoid = divide(1.0f, denominator(x));
    const float u2_slope =
        fmaf(3.0f * tessera::detail::gelu_cubic, x * x, tessera::detail::gelu_linear);
    return fmaf(x * u2_slope, sigmoid * (1.0f - sigmoid), sigmoid);
  }
};

}  // namespace tessera::cuda
