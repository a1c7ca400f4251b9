#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("transpose swaps the last two dimensions", "[transpose]") {
  const Shape shape = GENERATE(
      values<Shape>({{1, 1}, {1, 9}, {9, 1}, {3, 5}, {16, 16}, {17, 33}, {2, 3, 40, 21}, {5, 0}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, shape, 1);
  const Tensor y = ops::transpose(x);
  const std::vector<double> before = doubles(x), after = doubles(y);
  const int64_t m = shape[-2], n = shape[-1];
  REQUIRE(y.rank() == x.rank());
  REQUIRE(y.size(-2) == n);
  REQUIRE(y.size(-1) == m);
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t matrix = i / (m * n), row = i / n % m, column = i % n;
    const int64_t to = (matrix * n + column) * m + row;
    REQUIRE(after[static_cast<size_t>(to)] == before[static_cast<size_t>(i)]);
  }
  REQUIRE(same_bits(ops::transpose(y), x));
}

TEST_CASE("transpose's gradient", "[transpose]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(check_gradient([](const auto& in) { return ops::transpose(in[0]); },
                         {random_tensor({2, 3, 5}, 1)}, {.dtype = dtype}));
}

TEST_CASE("transpose with any number of threads", "[transpose]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads(
      [&] { return std::vector{ops::transpose(random_tensor_of(dtype, {3, 200, 130}, 1))}; }));
}

TEST_CASE("transpose refuses invalid arguments", "[transpose]") {
  REQUIRE_THROWS_WITH(ops::transpose(random_tensor({3}, 1)),
                      "transpose: shape [3], expected at least two dimensions");
}
