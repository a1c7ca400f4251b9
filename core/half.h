// The 16-bit storage types: bfloat16 (8 bits of exponent, 8 of mantissa) and IEEE 754 binary16 (5
// of exponent, 11 of mantissa). The mantissa includes the implicit leading bit. The types hold
// values; arithmetic is done in f32.
//
//   const float x = float(values[i]);
//   values[i] = rounded<BFloat16>(x + 1.0f);  // to the nearest, ties to even
//
// The conversions have no branches, so that loops around them vectorise. A vector lane gives the
// same bits as a scalar call. NaN stays NaN, values that are too large become infinity, and
// subnormal numbers are kept. A GPU rounds with its own instructions, which give the same bits
// except for those of NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tessera {

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit constexpr BFloat16(float value) : bits(0) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const auto word = std::bit_cast<uint32_t>(value);
    // Rounds to the nearest, ties to even. The lowest 16 bits are dropped. Adding 0x7FFF, one less
    // than half a unit of the last kept bit, rounds a tie down. If the last kept bit is 1, the
    // lowest bit is set before the addition, which rounds a tie up.
    const uint32_t half = ((word | ((word >> 16) & 1u)) + 0x7FFFu) >> 16;
    bits = static_cast<uint16_t>(value != value ? 0x7FC0u : half);  // rounding could lose a NaN
#endif
  }
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  bool operator==(const BFloat16&) const = default;  // compares the bits
};

struct Float16 {
  uint16_t bits;

  Float16() = default;
  explicit constexpr Float16(float value) : bits(0) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const auto word = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (word >> 16) & 0x8000u;
    // Magnitudes above 2^16 become 2^16, whose f16 bits are those of infinity. The rounding of
    // `normal` also turns magnitudes from 65520 on into 2^16.
    const uint32_t magnitude = std::min(word & 0x7FFFFFFFu, 0x47800000u);
    // Normal results: changes the exponent's bias from 127 to 15 and drops 13 bits. Rounds to the
    // nearest, ties to even, as BFloat16 does.
    const uint32_t normal = ((magnitude | ((magnitude >> 13) & 1u)) - 0x37FFF001u) >> 13;
    // Subnormal results (below 2^-14): adding 0.5 rounds the value to n * 2^-24, with an integer n.
    // The low bits of the sum are n, which is also the f16's bits without the sign.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3F000000u;
    const uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    bits = static_cast<uint16_t>(sign | (value != value ? 0x7E00u : half));
#endif
  }
  explicit constexpr operator float() const {
#ifdef __CUDA_ARCH__
    float value = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    // Builds the sign and the magnitude as if the exponent's bias were 127. Multiplying by 2^112
    // corrects the bias, for subnormals too.
    const auto extended = static_cast<uint32_t>(static_cast<int16_t>(bits));
    const uint32_t word = (extended << 13) & 0x8FFFFFFFu;  // keeps one copy of the sign
    const float scaled = std::bit_cast<float>(word) * 0x1p112f;
    // Infinity and NaN keep the largest exponent.
    const uint32_t special = (word & 0x0F800000u) == 0x0F800000u ? 0x7F800000u : 0u;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special);
#endif
  }
  bool operator==(const Float16&) const = default;  // compares the bits
};

/// Returns T(value); loops must use this function. In an `omp simd` loop, GCC keeps the temporary
/// of T(value) in memory and does not vectorise, so the loop is ten times slower. The result of a
/// function stays in a register.
template <class T>
constexpr T rounded(float value) {
  return T(value);
}

}  // namespace tessera
