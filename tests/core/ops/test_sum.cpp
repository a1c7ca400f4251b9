#include <cmath>

#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/check_gradient.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("sum and mean against float64", "[sum]") {
  const Shape shape = GENERATE(values<Shape>({{}, {1}, {17}, {3, 5}, {4096}, {4097}, {3, 70000}}));
  const Tensor x = random_tensor(shape, 1, -1, 2);
  double expected = 0;
  for (const double value : doubles(x)) expected += value;
  REQUIRE(ops::sum(x).shape() == Shape{});
  REQUIRE(max_error(ops::sum(x), {expected}) < 1e-7);
  REQUIRE(max_error(ops::mean(x), {expected / static_cast<double>(x.elements())}) < 2e-7);
}

TEST_CASE("the sum of nothing is zero", "[sum]") {
  REQUIRE(ops::sum(Tensor::empty({3, 0})).item() == 0.0f);
}

TEST_CASE("sum hands NaN and infinity on", "[sum]") {
  const Tensor x = random_tensor({100}, 1);
  x.data<float>()[70] = INFINITY;
  REQUIRE(ops::sum(x).item() == INFINITY);
  x.data<float>()[80] = NAN;
  REQUIRE(std::isnan(ops::sum(x).item()));
}

TEST_CASE("sum's and mean's gradients", "[sum]") {
  const Tensor x = random_tensor({3, 5}, 1);
  REQUIRE(check_gradient([](const auto& in) { return ops::sum(in[0]); }, {x}));
  REQUIRE(check_gradient([](const auto& in) { return ops::mean(in[0]); }, {x}));
}

TEST_CASE("sum's bits do not depend on the number of threads", "[sum]") {
  REQUIRE(same_bits_for_any_threads([] {
    return std::vector{ops::sum(random_tensor({100001}, 1)), ops::mean(random_tensor({50001}, 2))};
  }));
}

TEST_CASE("mean says what is wrong", "[sum]") {
  REQUIRE_THROWS_WITH(ops::mean(Tensor::empty({2, 0})), "mean: shape [2, 0] has no elements");
}
