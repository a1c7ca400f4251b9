#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("reshape shares memory", "[reshape]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {2, 6}, 1);
  const Tensor y = ops::reshape(x, {3, 4, 1});
  REQUIRE(y.shape() == Shape{3, 4, 1});
  REQUIRE(y.raw() == x.raw());
  REQUIRE(y.dtype() == dtype);
  REQUIRE(ops::reshape(random_tensor({0, 3}, 1), {5, 0}).shape() == Shape{5, 0});
  REQUIRE(ops::reshape(random_tensor({1}, 1), {}).shape() == Shape{});
}

TEST_CASE("reshape's gradient", "[reshape]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())),
                                     .roundings = 4};
  REQUIRE(check_gradient([](const auto& in) { return ops::reshape(in[0], {5, 3}); },
                         {random_tensor({3, 5}, 1)}, options));
  REQUIRE(check_gradient(  // both reshape and the inner mul use x
      [](const auto& in) {
        const Tensor x = ops::scale(in[0], 2);
        return ops::mul(ops::reshape(x, {15}), ops::reshape(ops::mul(x, x), {15}));
      },
      {random_tensor({3, 5}, 1)}, options));
}

TEST_CASE("reshape refuses invalid arguments", "[reshape]") {
  REQUIRE_THROWS_WITH(ops::reshape(random_tensor({2, 6}, 1), {5, 2}),
                      "reshape: shape [5, 2] has 10 elements, expected 12 as in shape [2, 6]");
}
