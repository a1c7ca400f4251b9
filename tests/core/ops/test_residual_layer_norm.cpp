// Compares residual_layer_norm with add followed by layer_norm. Checks its gradients for losses
// that use only the sum, only the normalized output, or both.
#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

namespace {

std::vector<Tensor> inputs(const Shape& shape, DType dtype = DType::f32) {
  return {random_tensor_of(dtype, shape, 1, -2, 2), random_tensor_of(dtype, shape, 2),
          random_tensor_of(dtype, {shape[-1]}, 3, 0.5f, 1.5f),
          random_tensor_of(dtype, {shape[-1]}, 4)};
}

// The sum is rounded before normalization, so the bound allows for more roundings than the default.
GradientCheckOptions any_dtype() {
  return {.dtype = GENERATE(from_range(float_dtypes())), .roundings = 4};
}

ops::ResidualNorm run(const std::vector<Tensor>& in) {
  return ops::residual_layer_norm(in[0], in[1], in[2], in[3]);
}

}  // namespace

TEST_CASE("residual_layer_norm equals add and layer_norm bit by bit", "[residual_layer_norm]") {
  const Shape shape = GENERATE(values<Shape>({{0, 4}, {1}, {3, 33}, {2, 5, 128}}));
  const auto in = inputs(shape, GENERATE(from_range(float_dtypes())));
  const auto [sum, normalized] = run(in);
  const Tensor expected = ops::add(in[0], in[1]);
  REQUIRE(same_bits(sum, expected));
  REQUIRE(same_bits(normalized, ops::layer_norm(expected, in[2], in[3])));
}

// This test is for the CPU, because on a GPU the mean of a row of equal values is not corrected.
TEST_CASE("residual_layer_norm of a row of equal values far from zero is the bias",
          "[residual_layer_norm][cpu]") {
  auto in = inputs({1, 1000});
  in[0] = Tensor::full({1, 1000}, 1000.1f);
  in[1] = Tensor::zeros({1, 1000});
  REQUIRE(max_error(run(in).normalized, doubles(in[3])) < 1e-5);
}

TEST_CASE("residual_layer_norm's gradient", "[residual_layer_norm]") {
  const GradientCheckOptions options = any_dtype();
  const auto in = inputs({2, 3, 7});
  REQUIRE(check_gradient([](const auto& x) { return run(x).normalized; }, in, options));
  REQUIRE(check_gradient(
      [](const auto& x) {
        const auto [sum, normalized] = run(x);
        return ops::mul(sum, normalized);
      },
      in, options));
}

TEST_CASE("residual_layer_norm's gradient if only the sum is used", "[residual_layer_norm]") {
  const auto in = inputs({4, 6});
  const auto operation = [&](const std::vector<Tensor>& x) {
    const auto as_x = [&](const Tensor& other) { return rounded_to(x[0].dtype(), other); };
    return ops::residual_layer_norm(x[0], x[1], as_x(in[2]), as_x(in[3])).sum;
  };
  REQUIRE(check_gradient(operation, {in[0], in[1]}, any_dtype()));
}

TEST_CASE("residual_layer_norm with one tensor as both inputs, or inputs without gradients",
          "[residual_layer_norm]") {
  const auto in = inputs({4, 6});
  REQUIRE(check_gradient(
      [&](const auto& x) { return ops::residual_layer_norm(x[0], x[0], in[2], in[3]).normalized; },
      {in[0]}));
  REQUIRE(check_gradient(
      [&](const auto& x) { return ops::residual_layer_norm(in[0], in[1], x[0], x[1]).normalized; },
      {in[2], in[3]}));
}

TEST_CASE("residual_layer_norm's bits do not depend on threads", "[residual_layer_norm]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    auto in = inputs({300, 130}, dtype);
    for (Tensor& tensor : in) tensor = leaf(tensor);
    const auto [sum, normalized] = run(in);
    backward(ops::sum(ops::mul(sum, normalized)));
    std::vector<Tensor> all = {sum.detach(), normalized.detach()};
    for (const Tensor& tensor : in) all.push_back(gradient_of(tensor));
    return all;
  }));
}

TEST_CASE("residual_layer_norm refuses invalid arguments", "[residual_layer_norm]") {
  auto in = inputs({2, 8});
  REQUIRE_THROWS_WITH(
      ops::residual_layer_norm(in[0], random_tensor({2, 7}, 1), in[2], in[3]),
      "residual_layer_norm: residual has shape [2, 7], expected [2, 8]");
  REQUIRE_THROWS_WITH(ops::residual_layer_norm(in[0], in[1], in[0], in[3]),
                      "residual_layer_norm: weight has shape [2, 8], expected [8]");
}
