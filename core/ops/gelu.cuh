// GELU and its derivative for kernels. gelu.h has the formula and defines u.
#pragma once

#include "core/cuda/kernel.cuh"
#include "core/ops/gelu.h"

namespace tessera::cuda {

namespace detail {
/// exp(-2u)
__device__ inline float gelu_exp(float x) {
  return expf(-x * fmaf(tessera::detail::gelu_cubic, x * x, tessera::detail::gelu_linear));
}
}  // namespace detail

__device__ inline float gelu(float x) { return x / (1.0f + detail::gelu_exp(x)); }

/// d gelu(x) / dx
__device__ inline float gelu_slope(float x) {
  constexpr float bound = 16.0f;  // as in gelu_slope_f32; NaN stays NaN
  x = fabsf(x) > bound ? copysignf(bound, x) : x;
  const float sigmoid = 1.0f / (1.0f + detail::gelu_exp(x));
  const float u2_slope =
      fmaf(3.0f * tessera::detail::gelu_cubic, x * x, tessera::detail::gelu_linear);
  return fmaf(x * u2_slope, sigmoid * (1.0f - sigmoid), sigmoid);
}

}  // namespace tessera::cuda
