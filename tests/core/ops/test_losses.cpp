// Compares losses and their gradients with float64.
#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

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

TEST_CASE("losses and their gradients equal float64", "[losses]") {
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

TEST_CASE("gradients of losses by both inputs agree with finite differences", "[losses]") {
  const Tensor x = random_tensor({4, 3}, 1), t = random_tensor({3}, 2, 0.25f, 0.75f);
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CHECK(check_gradient([&](const auto& in) { return c.loss(in[0], in[1]); }, {x, t}));
  }
}

TEST_CASE("bce_with_logits of large logits equals float64", "[losses]") {
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

/// The float64 cosine of two rows of C values, and its derivatives with respect to both rows.
struct Cosine {
  double value;
  Values da, db;

  Cosine(const double* a, const double* b, size_t channels) : da(channels), db(channels) {
    double aa = 0, bb = 0, ab = 0;
    for (size_t i = 0; i < channels; ++i) {
      aa += a[i] * a[i];
      bb += b[i] * b[i];
      ab += a[i] * b[i];
    }
    value = ab / std::sqrt(aa * bb);
    for (size_t i = 0; i < channels; ++i) {
      da[i] = b[i] / std::sqrt(aa * bb) - value * a[i] / aa;
      db[i] = a[i] / std::sqrt(aa * bb) - value * b[i] / bb;
    }
  }
};

TEST_CASE("cosine_loss and its gradients equal float64", "[losses]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const float margin = GENERATE(0.0f, 0.25f);
  const size_t rows = 40, channels = 9;
  const Tensor a = as_parameter(random_tensor_of(dtype, {40, 9}, 1));
  const Tensor b = as_parameter(random_tensor_of(dtype, {40, 9}, 2));
  Tensor t = random_tensor({40}, 3);
  for (float& value : t.values<float>()) value = value > 0 ? 1.0f : -1.0f;
  const Tensor targets = rounded_to(dtype, t);
  const Values x = values_of(a), y = values_of(b), sides = values_of(targets);
  double loss = 0;
  Values da, db;
  for (size_t row = 0; row < rows; ++row) {
    const Cosine cosine(x.data() + row * channels, y.data() + row * channels, channels);
    const double over = cosine.value - double{margin};
    const double slope = sides[row] > 0 ? -1 : over > 0 ? 1 : 0;
    loss += (sides[row] > 0 ? 1 - cosine.value : std::max(0.0, over)) / double{rows};
    for (size_t i = 0; i < channels; ++i) {
      da.push_back(slope * cosine.da[i] / double{rows});
      db.push_back(slope * cosine.db[i] / double{rows});
    }
  }
  const Tensor actual = ops::cosine_loss(a, b, targets, margin);
  REQUIRE(actual.shape() == Shape{});
  REQUIRE(actual.dtype() == DType::f32);
  CHECK(double{actual.item()} == Approx(loss).epsilon(1e-5));
  backward(actual);
  CHECK(relative_error(a.leaf()->gradient, da) <= tolerance(dtype, 2, 1e-5));
  CHECK(relative_error(b.leaf()->gradient, db) <= tolerance(dtype, 2, 1e-5));
}

TEST_CASE("cosine_similarity over any dimension equals float64", "[losses]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor a = random_tensor_of(dtype, {4, 3, 6}, 1), b = random_tensor_of(dtype, {3, 1}, 2);
  const Tensor y = ops::cosine_similarity(a, b, 1);
  REQUIRE(y.shape() == Shape{4, 6});
  REQUIRE(y.dtype() == dtype);
  const Values x = values_of(a), z = values_of(b);
  Values expected;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 6; ++j) {
      const double column[] = {x[i * 18 + j], x[i * 18 + 6 + j], x[i * 18 + 12 + j]};
      expected.push_back(Cosine(column, z.data(), 3).value);
    }
  }
  CHECK(relative_error(y, expected) <= tolerance(dtype, 1, 1e-6));
  const GradientCheckOptions options{.dtype = dtype};
  const auto similarity = [](const auto& in) { return ops::cosine_similarity(in[0], in[1], 1); };
  CHECK(
      check_gradient(similarity, {random_tensor({2, 3, 4}, 1), random_tensor({3, 1}, 2)}, options));
}

TEST_CASE("cosines of zeros and of large numbers are finite, as are their gradients", "[losses]") {
  const float value = GENERATE(0.0f, 1e15f, 1e-15f);
  const Tensor a = as_parameter(Tensor::full({2, 3}, value)), b = Tensor::full({2, 3}, 2);
  const Tensor y = ops::cosine_similarity(a, b);
  CHECK(values_of(y)[0] == Approx(value == 1e15f ? 1 : value == 0 ? 0 : 1.7320508e-7));
  backward(ops::sum(y));
  CHECK(std::isfinite(values_of(a.leaf()->gradient)[0]));
  backward(ops::cosine_loss(a, b, Tensor::full({2}, 1)));
  CHECK(std::isfinite(values_of(a.leaf()->gradient)[0]));
}

TEST_CASE("cosine_similarity of short vectors with a small epsilon equals float64", "[losses]") {
  // The lengths are 5e-8 to 5e-16, and 0. A vector shorter than epsilon is divided by epsilon.
  const float epsilon = GENERATE(1e-8f, 1e-12f, 1e-13f, 1e-15f);
  const float size = GENERATE(1e-8f, 1e-13f, 1e-15f, 1e-16f, 0.0f);
  CAPTURE(epsilon, size);
  const Tensor a = as_parameter(Tensor::from<float>({2}, {3 * size, 4 * size}));
  const Tensor b = Tensor::from<float>({2}, {1, -2});
  const Tensor y = ops::cosine_similarity(a, b, 0, epsilon);
  backward(y);
  const Values x = values_of(a), z = values_of(b);
  const double length = std::hypot(x[0], x[1]);
  Values da{z[0] / (std::sqrt(5.0) * double{epsilon}), z[1] / (std::sqrt(5.0) * double{epsilon})};
  double value = x[0] * da[0] + x[1] * da[1];
  if (length > double{epsilon}) {
    const Cosine cosine(x.data(), z.data(), 2);
    value = cosine.value;
    da = cosine.da;
  }
  CHECK(relative_error(y, {value}) <= 1e-6);
  CHECK(relative_error(a.leaf()->gradient, da) <= 1e-5);
}

TEST_CASE("cosine operations refuse invalid arguments", "[losses]") {
  const Tensor a = Tensor::full({2, 3}, 1);
  REQUIRE_THROWS_WITH(ops::cosine_similarity(a, Tensor::full({2, 1}, 1)),
                      "cosine_similarity: shapes [2, 3] and [2, 1] have 3 and 1 elements in "
                      "dimension -1, expected this dimension in both, with equally many "
                      "elements");
  REQUIRE_THROWS_WITH(ops::cosine_similarity(a, Tensor::full({3}, 1), 0),
                      "cosine_similarity: shapes [2, 3] and [3] have 2 and 1 elements in "
                      "dimension 0, expected this dimension in both, with equally many "
                      "elements");
  REQUIRE_THROWS_WITH(ops::cosine_similarity(a, a, 1, 0),
                      "cosine_similarity: epsilon is 0, expected 1e-15 to 1e19");
  REQUIRE_THROWS_WITH(ops::cosine_similarity(a, a, 1, 9e-16f), ContainsSubstring("1e-15 to 1e19"));
  REQUIRE_THROWS_WITH(ops::cosine_similarity(a, a, 1, 2e19f), ContainsSubstring("1e-15 to 1e19"));
  REQUIRE_THROWS_WITH(ops::cosine_loss(a, Tensor::full({3}, 1), a),
                      "cosine_loss: inputs have shapes [2, 3] and [3], expected both (..., C)");
  REQUIRE_THROWS_WITH(ops::cosine_loss(a, a, a),
                      "cosine_loss: targets have shape [2, 3], expected [2]");
  REQUIRE_THROWS_WITH(ops::cosine_loss(a, Tensor::empty({2, 3}, DType::f16), Tensor::full({2}, 1)),
                      "cosine_loss: the second input and the targets have dtypes f16 and f32, "
                      "expected f32");
}

}  // namespace
}  // namespace tessera::test
