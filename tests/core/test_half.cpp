// Compares the 16-bit storage types with their definition in float64. A value is sign * mantissa *
// 2^exponent. A conversion gives the nearest value, ties to even.
#include "core/half.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "core/random.h"
#include "tests/support/catch.h"

namespace tessera::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The number of stored mantissa bits of a format, and the exponent of its smallest normal number.
template <class T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int mantissa = 7;
  static constexpr int smallest = -126;
};
template <>
struct Format<Float16> {
  static constexpr int mantissa = 10;
  static constexpr int smallest = -14;
};

template <class T>
T from_bits(unsigned bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

/// Returns the value that a bit pattern encodes.
template <class T>
double decoded(unsigned bits) {
  constexpr int mantissa_bits = Format<T>::mantissa;
  const unsigned exponent = (bits & 0x7FFFu) >> mantissa_bits;
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == 0x7FFFu >> mantissa_bits) {
    magnitude = mantissa == 0 ? HUGE_VAL : std::nan("");
  } else {
    const unsigned hidden = exponent == 0 ? 0 : 1u << mantissa_bits;
    const int shift = static_cast<int>(std::max(exponent, 1u)) - 1;
    magnitude = std::ldexp(hidden + mantissa, Format<T>::smallest + shift - mantissa_bits);
  }
  return bits & 0x8000u ? -magnitude : magnitude;
}

/// Returns the value of the format that is nearest to x, ties to even.
template <class T>
double nearest(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), Format<T>::smallest);
  const double unit = std::ldexp(1, exponent - Format<T>::mantissa);
  const double rounded = std::nearbyint(x / unit) * unit;
  const double beyond = std::ldexp(1, 2 - Format<T>::smallest);
  return std::fabs(rounded) >= beyond ? std::copysign(HUGE_VAL, x) : rounded;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

/// Returns inputs of conversions to T:
///   every value of T, and the midpoints to its neighbours;
///   the two floats next to each of these;
///   random floats.
template <class T>
std::vector<float> interesting_values() {
  std::vector<float> values;
  const auto around = [&](float x) {
    values.insert(values.end(), {std::nextafter(x, -infinity), x, std::nextafter(x, infinity)});
  };
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    around(static_cast<float>(decoded<T>(bits)));
    around(static_cast<float>((decoded<T>(bits) + decoded<T>(bits ^ 1u)) / 2));
    around(static_cast<float>((decoded<T>(bits) + decoded<T>((bits + 1) & 0xFFFFu)) / 2));
  }
  for (uint32_t i = 0; i < 1u << 19; ++i) {
    for (const uint32_t word : philox({i, 0, 0, 0}, philox_key(7))) {
      values.push_back(std::bit_cast<float>(word));
    }
  }
  return values;
}

TEMPLATE_TEST_CASE("16-bit values are decoded as their format says, and come back from f32",
                   "[half]", BFloat16, Float16) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto value = from_bits<TestType>(bits);
    const float wide = float(value);
    if (!same(wide, decoded<TestType>(bits))) FAIL(bits << " became " << wide);
    const TestType back(wide);
    const bool kept = std::isnan(wide) ? std::isnan(float(back)) : back == value;
    if (!kept) FAIL(bits << " came back as " << back.bits);
  }
}

TEMPLATE_TEST_CASE("f32 is rounded to the nearest 16-bit value, ties to even", "[half]", BFloat16,
                   Float16) {
  for (const float x : interesting_values<TestType>()) {
    const float rounded = float(TestType(x));
    if (!same(rounded, nearest<TestType>(x))) FAIL(x << " became " << rounded);
  }
}

TEST_CASE("16-bit values at the ends of their ranges", "[half]") {
  CHECK(Float16(65519.996f).bits == 0x7BFF);  // 65504, the largest finite value
  CHECK(Float16(65520.0f).bits == 0x7C00);    // a tie, which rounds up to infinity
  CHECK(Float16(-1e30f).bits == 0xFC00);
  CHECK(Float16(0x1p-24f).bits == 1);         // the smallest positive value
  CHECK(Float16(0x1p-25f).bits == 0);         // half of the smallest: a tie, rounded to the even 0
  CHECK(Float16(0x1.8p-24f).bits == 2);
  CHECK(Float16(0x1.000002p-25f).bits == 1);
  CHECK(Float16(0x1.FFEp-15f).bits == 0x400); // rounds up to the smallest normal number
  CHECK(Float16(1e-45f).bits == 0);
  CHECK(Float16(-1e-45f).bits == 0x8000);
  CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(BFloat16(0x1.FEp127f).bits == 0x7F7F);
  CHECK(BFloat16(0x1p-133f).bits == 1);
  CHECK(BFloat16(0x1p-134f).bits == 0);
  CHECK(BFloat16(-0.0f).bits == 0x8000);
  // In the mantissa of this NaN, only the lowest bit is set. A conversion that merely dropped the
  // low bits would return an infinity.
  const float thin_nan = std::bit_cast<float>(0x7F800001u);
  CHECK(std::isnan(float(BFloat16(thin_nan))));
  CHECK(std::isnan(float(Float16(thin_nan))));
}

template <class To, class From>
[[gnu::noinline]] void convert_all(To* to, const From* from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = rounded<To>(float(from[i]));
}

TEMPLATE_TEST_CASE("a vectorised loop of conversions gives the bits of scalar calls", "[half]",
                   BFloat16, Float16) {
  const std::vector<float> values = interesting_values<TestType>();
  std::vector<TestType> narrow(values.size());
  std::vector<float> wide(values.size());
  convert_all(narrow.data(), values.data(), static_cast<int64_t>(values.size()));
  convert_all(wide.data(), narrow.data(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    const volatile float alone = values[i];
    const TestType expected(alone);
    if (narrow[i] != expected) FAIL(values[i] << " became " << narrow[i].bits);
    const float back = float(expected);
    if (std::bit_cast<uint32_t>(wide[i]) != std::bit_cast<uint32_t>(back)) FAIL(back);
  }
}

TEST_CASE("kernels take the float dtypes, and refuse others", "[half]") {
  CHECK(is_float(DType::f32));
  CHECK(is_float(DType::bf16));
  CHECK(is_float(DType::f16));
  CHECK_FALSE(is_float(DType::i32));
  DType seen = DType::u8;
  visit_float(DType::bf16, "test", [&]<class T>() { seen = dtype_of<T>; });
  CHECK(seen == DType::bf16);
  CHECK_THROWS_WITH(visit_float(DType::i64, "test", []<class T>() {}),
                    "test: dtype i64 is not supported, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace tessera::test
