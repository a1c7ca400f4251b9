// Compares rotary's results and gradients with float64 for both ways to pair the values of an
// attention head. The dot product of a query and a key must depend only on the distance between
// their positions.
#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

using ops::RotaryOptions;
using ops::RotaryPairs;

/// Returns x (B, T, H, D) with its pairs rotated in float64, backwards if `sign` is -1.
/// position(b, t) is the position of token t in sequence b.
template <class Position>
Values turned(const Tensor& x, const RotaryOptions& options, double sign,
              const Position& position) {
  const Values in = values_of(x);
  Values out(in.size());
  if (in.empty()) return out;
  const int64_t pairs = x.size(3) / 2;
  const bool halves = options.pairs == RotaryPairs::halves;
  for (int64_t row = 0; row < x.elements() / x.size(3); ++row) {
    const int64_t token = row / x.size(2);
    const auto at = static_cast<double>(position(token / x.size(1), token % x.size(1)));
    for (int64_t i = 0; i < pairs; ++i) {
      const double power = -2.0 * static_cast<double>(i) / static_cast<double>(x.size(3));
      const double angle = sign * at * std::pow(double{options.base}, power);
      const auto first = static_cast<size_t>(row * x.size(3) + (halves ? i : 2 * i));
      const size_t second = first + static_cast<size_t>(halves ? pairs : 1);
      out[first] = in[first] * std::cos(angle) - in[second] * std::sin(angle);
      out[second] = in[first] * std::sin(angle) + in[second] * std::cos(angle);
    }
  }
  return out;
}

TEST_CASE("rotary rotates pairs as float64 does, and gradients the other way", "[rotary]") {
  const Shape shape = GENERATE(Shape{1, 1, 1, 2}, Shape{2, 5, 3, 8}, Shape{1, 70, 2, 66},
                               Shape{3, 2, 1, 10}, Shape{0, 4, 2, 4}, Shape{2, 3, 2, 0});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const RotaryOptions options =
      GENERATE(RotaryOptions{}, RotaryOptions{.base = 500.0f, .offset = 100003},
               RotaryOptions{.pairs = RotaryPairs::interleaved, .offset = -3});
  const Tensor x = as_parameter(random_tensor_of(dtype, shape, 1));
  const Tensor dy = random_tensor_of(dtype, shape, 2);
  const Tensor y = ops::rotary(x, {}, options);
  backward_from(y, dy);
  const auto position = [&](int64_t, int64_t t) { return t + options.offset; };
  CHECK(relative_error(y, turned(x, options, 1, position)) < tolerance(dtype, 1, 1e-6));
  CHECK(relative_error(x.leaf()->gradient, turned(dy, options, -1, position)) <
        tolerance(dtype, 1, 1e-6));
}

TEST_CASE("rotary takes positions for all sequences or for each", "[rotary]") {
  const RotaryPairs pairs = GENERATE(RotaryPairs::halves, RotaryPairs::interleaved);
  const RotaryOptions options{.pairs = pairs, .offset = 5};
  const bool each = GENERATE(false, true);
  const Tensor x = random_tensor({3, 7, 2, 6}, 1);
  const Tensor positions = random_indices(each ? Shape{3, 7} : Shape{7}, 2, 1000);
  const auto position = [&](int64_t b, int64_t t) {
    return positions.data<int32_t>()[(each ? b * 7 : 0) + t] + 5;
  };
  CHECK(relative_error(ops::rotary(x, positions, options), turned(x, options, 1, position)) < 1e-6);
}

TEST_CASE("rotary: products of queries and keys depend only on their distance", "[rotary]") {
  const RotaryPairs pairs = GENERATE(RotaryPairs::halves, RotaryPairs::interleaved);
  const Tensor q = random_tensor({1, 1, 1, 32}, 1), k = random_tensor({1, 1, 1, 32}, 2);
  const auto product = [&](int64_t query, int64_t key) {
    const Tensor a = ops::rotary(q, {}, {.pairs = pairs, .offset = query});
    const Tensor b = ops::rotary(k, {}, {.pairs = pairs, .offset = key});
    return ops::sum(ops::mul(a, b)).item();
  };
  CHECK(std::fabs(product(7, 3) - product(1004, 1000)) < 1e-5f);
  CHECK(std::fabs(product(7, 3) - product(8, 3)) > 1e-3f);
}

TEST_CASE("rotary passes the check of its gradient", "[rotary]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())), .roundings = 4};
  const RotaryPairs pairs = GENERATE(RotaryPairs::halves, RotaryPairs::interleaved);
  CHECK(check_gradient(
      [&](const auto& in) { return ops::rotary(in[0], {}, {.pairs = pairs, .offset = 2}); },
      {random_tensor({2, 3, 2, 4}, 1)}, options));
}

TEST_CASE("rotary's bits do not depend on the number of threads", "[rotary]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor x = leaf(random_tensor_of(dtype, {2, 70, 3, 34}, 1));
    const Tensor y = ops::rotary(x);
    backward(ops::sum(ops::mul(y, ops::rotary(y))));
    return std::vector{y.detach(), gradient_of(x)};
  }));
}

TEST_CASE("rotary's workspace is its table of cosines and sines", "[rotary]") {
  MemoryLedger& ledger = memory_ledger(default_device());
  const int64_t before = ledger.current(Category::workspace);
  ledger.reset_peaks();
  ops::rotary(random_tensor({2, 7, 3, 6}, 1));
  CHECK(ledger.peak(Category::workspace) - before == 7 * 6 * 4);
}

TEST_CASE("rotary refuses invalid arguments", "[rotary]") {
  const Tensor x = random_tensor({2, 3, 2, 4}, 1);
  REQUIRE_THROWS_WITH(ops::rotary(random_tensor({2, 3, 4}, 1)),
                      "rotary: x has shape [2, 3, 4], expected (B, T, H, D) with even D");
  REQUIRE_THROWS_WITH(ops::rotary(random_tensor({2, 3, 2, 5}, 1)),
                      "rotary: x has shape [2, 3, 2, 5], expected (B, T, H, D) with even D");
  REQUIRE_THROWS_WITH(ops::rotary(x, random_indices({2}, 1, 9)),
                      "rotary: positions are i32 [2], expected i32 [3] or [2, 3]");
  REQUIRE_THROWS_WITH(ops::rotary(x, random_tensor({3}, 1)),
                      "rotary: positions are f32 [3], expected i32 [3] or [2, 3]");
  for (const float base : {-1.0f, INFINITY}) {
    REQUIRE_THROWS_WITH(ops::rotary(x, {}, {.base = base}),
                        fmt::format("rotary: base is {}, expected finite and above 0", base));
  }
}

}  // namespace
}  // namespace tessera::test
