#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("slice takes rows and shares memory", "[slice]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {5, 3, 2}, 1);
  const Tensor y = ops::slice(x, 1, 4);
  REQUIRE(y.shape() == Shape{3, 3, 2});
  REQUIRE(y.raw() == static_cast<std::byte*>(x.raw()) + 6 * dtype_size(dtype));
  REQUIRE(ops::slice(x, 5, 5).shape() == Shape{0, 3, 2});
}

TEST_CASE("slice's gradient is zero outside the rows", "[slice]") {
  const auto [begin, end] = GENERATE(table<int64_t, int64_t>({{0, 5}, {1, 4}, {4, 5}, {2, 2}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(check_gradient(
      [begin = begin, end = end](const auto& in) { return ops::slice(in[0], begin, end); },
      {random_tensor({5, 3}, 1)}, {.dtype = dtype}));
}

TEST_CASE("gradients of overlapping slices add up", "[slice]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(check_gradient(
      [](const auto& in) { return ops::mul(ops::slice(in[0], 0, 3), ops::slice(in[0], 1, 4)); },
      {random_tensor({4, 3}, 1)}, {.dtype = dtype}));
}

TEST_CASE("slice refuses invalid arguments", "[slice]") {
  const Tensor x = random_tensor({5, 3}, 1);
  REQUIRE_THROWS_WITH(ops::slice(x, 2, 6),
                      "slice: [2, 6) is not a range of the 5 rows of shape [5, 3]");
  REQUIRE_THROWS_WITH(ops::slice(x, 3, 2),
                      "slice: [3, 2) is not a range of the 5 rows of shape [5, 3]");
  REQUIRE_THROWS_WITH(ops::slice(x, -1, 2),
                      "slice: [-1, 2) is not a range of the 5 rows of shape [5, 3]");
  REQUIRE_THROWS_WITH(ops::slice(Tensor::full({}, 1), 0, 0), "slice: a scalar has no rows");
}
