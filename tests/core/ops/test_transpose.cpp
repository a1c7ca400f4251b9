#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/check_gradient.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("transpose swaps the last two dimensions", "[transpose]") {
  const Shape shape = GENERATE(
      values<Shape>({{1, 1}, {1, 9}, {9, 1}, {3, 5}, {16, 16}, {17, 33}, {2, 3, 40, 21}, {5, 0}}));
  const Tensor x = random_tensor(shape, 1);
  const Tensor y = ops::transpose(x);
  const int64_t m = shape[-2], n = shape[-1];
  REQUIRE(y.rank() == x.rank());
  REQUIRE(y.size(-2) == n);
  REQUIRE(y.size(-1) == m);
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t matrix = i / (m * n), row = i / n % m, column = i % n;
    REQUIRE(y.data<float>()[(matrix * n + column) * m + row] == x.data<float>()[i]);
  }
  REQUIRE(same_bits(ops::transpose(y), x));
}

TEST_CASE("transpose's gradient", "[transpose]") {
  REQUIRE(check_gradient([](const auto& in) { return ops::transpose(in[0]); },
                         {random_tensor({2, 3, 5}, 1)}));
}

TEST_CASE("transpose with any number of threads", "[transpose]") {
  REQUIRE(same_bits_for_any_threads(
      [] { return std::vector{ops::transpose(random_tensor({3, 200, 130}, 1))}; }));
}

TEST_CASE("transpose says what is wrong", "[transpose]") {
  REQUIRE_THROWS_WITH(ops::transpose(random_tensor({3}, 1)),
                      "transpose: shape [3], expected at least two dimensions");
}
