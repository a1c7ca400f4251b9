#include "core/cpu/vector_math.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;

namespace {

using Function = float (*)(float);

[[gnu::noinline]] float scalar_exp(float x) { return exp_f32(x); }
[[gnu::noinline]] float scalar_log(float x) { return log_f32(x); }
[[gnu::noinline]] float scalar_tanh(float x) { return tanh_f32(x); }

[[gnu::noinline]] void vector_exp(float* y, const float* x, size_t n) {
#pragma omp simd
  for (size_t i = 0; i < n; ++i) y[i] = exp_f32(x[i]);
}
[[gnu::noinline]] void vector_log(float* y, const float* x, size_t n) {
#pragma omp simd
  for (size_t i = 0; i < n; ++i) y[i] = log_f32(x[i]);
}
[[gnu::noinline]] void vector_tanh(float* y, const float* x, size_t n) {
#pragma omp simd
  for (size_t i = 0; i < n; ++i) y[i] = tanh_f32(x[i]);
}

/// For each function, the two floats at which its error is largest: first with FMA instructions,
/// then without them.
constexpr float worst_inputs[] = {-0x1.782f42p+2f, 0x1.199cc6p+6f,   // exp
                                  0x1.69e472p+0f,  0x1.65dadp-1f,    // log
                                  0x1.fd0794p-8f,  0x1.fbe79cp-5f};  // tanh

/// Returns the worst inputs, and every 4093rd bit pattern as a float. The values have all exponents
/// and both signs, and include NaNs.
std::vector<float> many_floats() {
  std::vector<float> values(std::begin(worst_inputs), std::end(worst_inputs));
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4093) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return values;
}

/// Returns the error of `actual` in ulps, units in the last place of the correctly rounded result.
double ulp_error(float actual, double expected) {
  const float rounded = static_cast<float>(expected);
  if (std::isnan(expected)) return std::isnan(actual) ? 0 : HUGE_VAL;
  if (std::isinf(rounded)) return actual == rounded ? 0 : HUGE_VAL;
  const float magnitude = std::fabs(rounded);
  const double unit = std::nextafter(magnitude, INFINITY) - magnitude;
  return std::abs(actual - expected) / unit;
}

struct Comparison {
  double worst_ulp = 0;
  size_t different_bits = 0;  // results that differ between the vectorised loop and single calls
};

template <class Vector, class Reference>
Comparison compare(Vector vectorised, Function scalar, Reference reference) {
  const std::vector<float> x = many_floats();
  std::vector<float> y(x.size());
  vectorised(y.data(), x.data(), x.size());
  Comparison result;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulp_error(y[i], reference(static_cast<double>(x[i])));
    result.worst_ulp = test::larger_difference(result.worst_ulp, error);
    const float one = scalar(x[i]);
    if (std::isnan(one) && std::isnan(y[i])) continue;
    if (std::memcmp(&one, &y[i], sizeof one) != 0) ++result.different_bits;
  }
  return result;
}

}  // namespace

TEST_CASE("exp_f32 is exact to 1.02 ulp, and has the same bits in a vector", "[vector_math]") {
  const Comparison result = compare(vector_exp, scalar_exp, [](double x) { return std::exp(x); });
  REQUIRE(result.worst_ulp <= 1.02);
  REQUIRE(result.different_bits == 0);
}

TEST_CASE("log_f32 is exact to one ulp, and has the same bits in a vector", "[vector_math]") {
  const Comparison result = compare(vector_log, scalar_log, [](double x) { return std::log(x); });
  REQUIRE(result.worst_ulp <= 1.0);
  REQUIRE(result.different_bits == 0);
}

TEST_CASE("tanh_f32 is exact to 2.5 ulp, and has the same bits in a vector", "[vector_math]") {
  const Comparison result =
      compare(vector_tanh, scalar_tanh, [](double x) { return std::tanh(x); });
  REQUIRE(result.worst_ulp <= 2.5);
  REQUIRE(result.different_bits == 0);
}

TEST_CASE("exp_f32, log_f32 and tanh_f32 at zero, infinity, NaN and the ends of their ranges",
          "[vector_math]") {
  const float infinity = std::numeric_limits<float>::infinity();
  REQUIRE(exp_f32(0.0f) == 1.0f);
  REQUIRE(exp_f32(infinity) == infinity);
  REQUIRE(exp_f32(88.8f) == infinity);
  REQUIRE(exp_f32(88.7f) < infinity);
  REQUIRE(exp_f32(-infinity) == 0.0f);
  REQUIRE(exp_f32(-103.0f) > 0.0f);  // subnormal
  REQUIRE(exp_f32(-104.0f) == 0.0f);
  REQUIRE(std::isnan(exp_f32(NAN)));
  REQUIRE(log_f32(0.0f) == -infinity);
  REQUIRE(log_f32(-0.0f) == -infinity);
  REQUIRE(log_f32(1.0f) == 0.0f);
  REQUIRE(log_f32(infinity) == infinity);
  REQUIRE(std::isnan(log_f32(-1.0f)));
  REQUIRE(std::isnan(log_f32(-infinity)));
  REQUIRE(std::isnan(log_f32(NAN)));
  REQUIRE(tanh_f32(infinity) == 1.0f);
  REQUIRE(tanh_f32(-infinity) == -1.0f);
  REQUIRE(std::signbit(tanh_f32(-0.0f)));
  REQUIRE(tanh_f32(1e-30f) == 1e-30f);
  REQUIRE(std::isnan(tanh_f32(NAN)));
}
