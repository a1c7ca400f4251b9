// Compares gelu's results and gradients with float64. Also tests values far from zero.
#include "core/ops/gelu.h"

#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

namespace {

const double root = std::sqrt(2 / std::acos(-1.0));

double gelu_reference(double x) {
  return 0.5 * x * (1 + std::tanh(root * (x + 0.044715 * x * x * x)));
}

double slope_reference(double x) {
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

}  // namespace

TEST_CASE("gelu against float64", "[gelu]") {
  const int64_t size = GENERATE(0, 1, 15, 16, 17, 255, 256, 257, 1000);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Context context = test_context();
  const Tensor x = random_tensor_of(dtype, {size}, 1, -6, 6);
  const Tensor dy = random_tensor_of(dtype, {size}, 2);
  std::vector<double> y_expected, dx_expected = doubles(dy);
  for (const double value : doubles(x)) {
    dx_expected[y_expected.size()] *= slope_reference(value);
    y_expected.push_back(gelu_reference(value));
  }
  REQUIRE(max_error(ops::gelu(x), y_expected) < tolerance(dtype, 1, 1e-6));
  const Tensor dx = Tensor::empty({size}, dtype);
  kernels::gelu_backward(context, dx, dy, x);
  REQUIRE(max_error(dx, dx_expected) < tolerance(dtype, 1, 2e-6));
  kernels::gelu_backward(context, dy, dy, x);  // in place
  REQUIRE(same_bits(dy, dx));
}

TEST_CASE("gelu keeps the shape and takes a scalar", "[gelu]") {
  REQUIRE(ops::gelu(random_tensor({2, 3, 4}, 1)).shape() == Shape{2, 3, 4});
  REQUIRE(ops::gelu(Tensor::full({}, 0.0f)).item() == 0.0f);
}

TEST_CASE("gelu far from the origin", "[gelu]") {
  for (const float x : {20.0f, 1e10f, 3e38f}) {
    REQUIRE(gelu_f32(x) == x);
    REQUIRE(gelu_f32(-x) == 0.0f);
    REQUIRE(gelu_slope_f32(x) == 1.0f);
    REQUIRE(gelu_slope_f32(-x) == 0.0f);
  }
  REQUIRE(gelu_f32(INFINITY) == INFINITY);
  REQUIRE(std::isnan(gelu_f32(NAN)));
  REQUIRE(std::isnan(gelu_slope_f32(NAN)));
}

TEST_CASE("gelu keeps the small values of its negative tail", "[gelu]") {
  // gelu(x) is x / 2 * (1 + tanh(u)) = x * sigmoid(2u), with u = root * (x + 0.044715 x^3). At
  // x = -6.5, 1 + tanh(u) is zero in f32, but sigmoid(2u) is not.
  const double u2 = 2 * root * (-6.5 + 0.044715 * -6.5 * 6.5 * 6.5);
  const double expected = -6.5 / (1 + std::exp(-u2));
  REQUIRE(std::abs(gelu_f32(-6.5f) / expected - 1) < 1e-5);
}

TEST_CASE("gelu's gradient", "[gelu]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const auto operation = [](const std::vector<Tensor>& in) { return ops::gelu(in[0]); };
  REQUIRE(check_gradient(operation, {random_tensor({3, 7}, 1, -3, 3)}, options));
  REQUIRE(check_gradient(operation, {random_tensor({}, 2)}, options));
  REQUIRE(check_gradient(operation, {random_tensor({0, 4}, 2)}, options));
}

TEST_CASE("gelu's bits do not depend on the number of threads", "[gelu]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor x = random_tensor_of(dtype, {10007}, 1, -5, 5);
    const Tensor dx = Tensor::empty(x.shape(), dtype);
    kernels::gelu_backward(test_context(), dx, random_tensor_of(dtype, {10007}, 2), x);
    return std::vector{ops::gelu(x), dx};
  }));
}
