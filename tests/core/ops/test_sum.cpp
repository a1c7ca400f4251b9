#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("sum and mean equal float64, and are f32 for every dtype", "[sum]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Shape shape = GENERATE(values<Shape>({{}, {1}, {17}, {3, 5}, {4096}, {4097}, {3, 70000}}));
  const Tensor x = random_tensor_of(dtype, shape, 1, -1, 2);
  double expected = 0;
  for (const double value : doubles(x)) expected += value;
  REQUIRE(ops::sum(x).shape() == Shape{});
  REQUIRE(ops::sum(x).dtype() == DType::f32);
  REQUIRE(max_error(ops::sum(x), {expected}) < 1e-7);
  REQUIRE(max_error(ops::mean(x), {expected / static_cast<double>(x.elements())}) < 2e-7);
}

TEST_CASE("the sum of an empty tensor is zero", "[sum]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(ops::sum(Tensor::empty({3, 0}, dtype)).item() == 0.0f);
}

TEST_CASE("sum propagates NaN and infinity", "[sum]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor({100}, 1);
  x.data<float>()[70] = INFINITY;
  REQUIRE(ops::sum(rounded_to(dtype, x)).item() == INFINITY);
  x.data<float>()[80] = NAN;
  REQUIRE(std::isnan(ops::sum(rounded_to(dtype, x)).item()));
}

TEST_CASE("sum's and mean's gradients", "[sum]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const Tensor x = random_tensor({3, 5}, 1);
  REQUIRE(check_gradient([](const auto& in) { return ops::sum(in[0]); }, {x}, options));
  REQUIRE(check_gradient([](const auto& in) { return ops::mean(in[0]); }, {x}, options));
}

TEST_CASE("sum's bits do not depend on the number of threads", "[sum]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    return std::vector{ops::sum(random_tensor_of(dtype, {100001}, 1)),
                       ops::mean(random_tensor_of(dtype, {50001}, 2))};
  }));
}

TEST_CASE("mean refuses invalid arguments", "[sum]") {
  REQUIRE_THROWS_WITH(ops::mean(Tensor::empty({2, 0})), "mean: shape [2, 0] has no elements");
}
