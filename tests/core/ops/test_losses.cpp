// Losses against float64.
#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  const char* name;
  Tensor (*loss)(const Tensor&, const Tensor&);
  double (*value)(double x, double t);
  double (*slope)(double x, double t);
};

const Case cases[] = {
    {"mse_loss", ops::mse_loss, [](double x, double t) { return (x - t) * (x - t); },
     [](double x, double t) { return 2 * (x - t); }},
    {"bce_with_logits", ops::bce_with_logits,
     [](double x, double t) {
       return std::log1p(std::exp(-std::fabs(x))) + std::max(x, 0.0) - x * t;
     },
     [](double x, double t) { return 1 / (1 + std::exp(-x)) - t; }},
    {"hinge_loss", ops::hinge_loss, [](double x, double t) { return std::max(0.0, 1 - t * x); },
     [](double x, double t) { return t * x < 1 ? -t : 0.0; }}};

TEST_CASE("losses and their gradients are those of float64", "[losses]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  for (const Case& c : cases) {
    CAPTURE(c.name, dtype_name(dtype));
    const Tensor x = as_parameter(random_tensor_of(dtype, {3, 50}, 1, -3, 3));
    Tensor t = random_tensor({50}, 2, 0, 1);
    for (float& value : t.values<float>()) value = value > 0.5f ? 1.0f : -1.0f;
    if (c.loss == ops::bce_with_logits) t = random_tensor({50}, 2, 0, 1);
    const Tensor targets = rounded_to(dtype, t);
    const Values in = values_of(x), at = values_of(targets);
    double mean = 0;
    Values dx(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      mean += c.value(in[i], at[i % 50]) / 150;
      dx[i] = c.slope(in[i], at[i % 50]) / 150;
    }
    const Tensor loss = c.loss(x, targets);
    REQUIRE(loss.shape() == Shape{});
    REQUIRE(loss.dtype() == DType::f32);
    CHECK(double{loss.item()} == Approx(mean).epsilon(tolerance(dtype, 2)));
    backward(loss);
    CHECK(relative_error(x.leaf()->gradient, dx) <= tolerance(dtype, 4, 1e-5));
  }
}

TEST_CASE("gradients of losses pass finite differences, by both inputs", "[losses]") {
  const Tensor x = random_tensor({4, 3}, 1), t = random_tensor({3}, 2, 0.25f, 0.75f);
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CHECK(check_gradient([&](const auto& in) { return c.loss(in[0], in[1]); }, {x, t}));
  }
}

TEST_CASE("a sure logit has the loss that float64 gives it", "[losses]") {
  const auto loss = [](float x, float t) {
    return double{
        ops::bce_with_logits(Tensor::from<float>({1}, {x}), Tensor::from<float>({1}, {t})).item()};
  };
  CHECK(loss(20, 1) == Approx(std::log1p(std::exp(-20.0))).epsilon(1e-6));
  CHECK(loss(-20, 0) == Approx(std::log1p(std::exp(-20.0))).epsilon(1e-6));
  CHECK(loss(1000, 0) == 1000);
  CHECK(loss(-1000, 1) == 1000);
  CHECK(loss(1000, 1) == 0);
}

}  // namespace
}  // namespace tessera::test
