// exp, log and tanh for vectorised loops. The functions are inline and branch-free, and their
// arithmetic is additions, multiplications and at most one division. So the compiler vectorises
// loops around them without -ffast-math. A vector lane and a scalar call give the same bits, which
// do not depend on the C library.
//
// The errors are at most 1 unit in the last place for log, 1.02 units for exp and 2.5 for tanh. NaN
// stays NaN. exp overflows to infinity and underflows through the subnormals to zero; tanh
// saturates at -1 and 1; log of zero is -infinity, and log of a negative number is NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {

/// a * b + c, rounded once if the program is compiled for processors with FMA. Loops call this
/// function, because the compiler may fuse a plain a * b + c in a vectorised loop's body but not in
/// the loop's remainder. The bits of a result would then depend on the result's position in the
/// loop.
inline float multiply_add(float a, float b, float c) {
#ifdef FP_FAST_FMAF
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// Clamps x to [-bound, bound]; NaN stays NaN. Uses one comparison, because two comparisons would
/// compile to a slower chain of vector masks.
inline float clamp_magnitude(float x, float bound) {
  const float magnitude = std::fabs(x);
  return std::copysign(magnitude > bound ? bound : magnitude, x);
}

namespace detail {

/// exp(x) = 2^n * (1 + q), where |log(1 + q)| is at most log(2) / 2, apart from rounding. Callers
/// clamp x to [-104, 104], so that n has at most 8 bits. In reduce_exp, the product of n with the
/// first part of log(2) is then exact.
struct ReducedExp {
  float q;
  int32_t n;
};

inline ReducedExp reduce_exp(float x) {
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
  constexpr float shifter = 0x1.8p23f;
  const float shifted = multiply_add(x, 0x1.715476p0f, shifter);  // x / log(2)
  const uint32_t n = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(shifter);
  const float n_float = shifted - shifter;
  // log(2) in two parts; the first has so few bits that its product with n is exact.
  float r = multiply_add(n_float, -0.693359375f, x);
  r = multiply_add(n_float, 2.12194440e-4f, r);
  // exp(r) - 1 = r + r^2 p(r), with the coefficients of Cephes' expf (Moshier).
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  return {multiply_add(r * r, p, r), static_cast<int32_t>(n)};
}

/// 2^n for n in [-126, 127].
inline float power_of_two(int32_t n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

}  // namespace detail

inline float exp_f32(float x) {
  // exp is infinity from 89 on and zero below -104, so the bound of 104 changes no result.
  const auto [q, n] = detail::reduce_exp(clamp_magnitude(x, 104.0f));
  // 2^n is split into two factors, because 2^n itself may not be a normal number. The product with
  // the first factor is exact; only the product with the second factor can round.
  const int32_t half = n >> 1;
  return (1.0f + q) * detail::power_of_two(half) * detail::power_of_two(n - half);
}

inline float tanh_f32(float x) {
  // tanh rounds to 1 from 9.02 on, so the bound of 10 changes no result.
  const auto [q, n] = detail::reduce_exp(2.0f * clamp_magnitude(std::fabs(x), 10.0f));
  // exp(2x) - 1 = scale * q + (scale - 1). Near zero n = 0, so the second term vanishes and nothing
  // cancels.
  const float scale = detail::power_of_two(n);
  const float exp_minus_one = multiply_add(scale, q, scale - 1.0f);
  return std::copysign(exp_minus_one / (exp_minus_one + 2.0f), x);
}

inline float log_f32(float x) {
  // Scales subnormal numbers by 2^23 to make them normal. `n` corrects the exponent.
  const bool subnormal = x < std::numeric_limits<float>::min();
  const auto word = std::bit_cast<uint32_t>(subnormal ? x * 0x1p23f : x);
  // Subtracting the bits of sqrt(1/2) splits x = 2^n m with m in [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = word - 0x3F3504F3u;
  const int32_t n = (static_cast<int32_t>(shifted) >> 23) - (subnormal ? 23 : 0);
  const float f = std::bit_cast<float>((shifted & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  // log(1 + f) = f - f^2 / 2 + f^3 p(f), with the coefficients of Cephes' logf (Moshier).
  float p = 7.0376836292e-2f;
  p = multiply_add(p, f, -1.1514610310e-1f);
  p = multiply_add(p, f, 1.1676998740e-1f);
  p = multiply_add(p, f, -1.2420140846e-1f);
  p = multiply_add(p, f, 1.4249322787e-1f);
  p = multiply_add(p, f, -1.6668057665e-1f);
  p = multiply_add(p, f, 2.0000714765e-1f);
  p = multiply_add(p, f, -2.4999993993e-1f);
  p = multiply_add(p, f, 3.3333331174e-1f);
  // log(2) in two parts; the first has so few bits that its product with n is exact.
  const auto n_float = static_cast<float>(n);
  const float square = f * f;
  float small = multiply_add(n_float, -2.12194440e-4f, p * square * f);
  small = multiply_add(square, -0.5f, small);
  const float result = multiply_add(n_float, 0.693359375f, f + small);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float special = x == 0.0f ? -infinity : x < 0 ? std::numeric_limits<float>::quiet_NaN() : x;
  return x > 0 && x < infinity ? result : special;
}

}  // namespace tessera
