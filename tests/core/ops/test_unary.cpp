// Compares the unary elementwise operations and their gradients with float64 in every float dtype.
// (gelu, relu and scale have tests of their own.)
#include "core/ops/unary.h"

#include <cmath>
#include <limits>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  const char* name;
  std::function<Tensor(const Tensor&)> operation;
  std::function<double(double)> value;
  std::function<double(double)> slope;
  float low = -3;
  float high = 3;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"neg", ops::neg, [](double x) { return -x; }, [](double) { return -1.0; }},
      {"exp", ops::exp, [](double x) { return std::exp(x); }, [](double x) { return std::exp(x); }},
      {"log", ops::log, [](double x) { return std::log(x); }, [](double x) { return 1 / x; }, 0.5f},
      {"sqrt", ops::sqrt, [](double x) { return std::sqrt(x); },
       [](double x) { return 0.5 / std::sqrt(x); }, 0.5f},
      {"rsqrt", ops::rsqrt, [](double x) { return 1 / std::sqrt(x); },
       [](double x) { return -0.5 * std::pow(x, -1.5); }, 0.5f},
      {"reciprocal", ops::reciprocal, [](double x) { return 1 / x; },
       [](double x) { return -1 / (x * x); }, 0.5f},
      {"square", ops::square, [](double x) { return x * x; }, [](double x) { return 2 * x; }},
      {"abs", ops::abs, [](double x) { return std::fabs(x); },
       [](double x) { return x > 0   ? 1.0
                             : x < 0 ? -1.0
                                     : 0.0; }},
      {"tanh", ops::tanh, [](double x) { return std::tanh(x); },
       [](double x) { return 1 - std::tanh(x) * std::tanh(x); }},
      {"sigmoid", ops::sigmoid, sigmoid, [](double x) { return sigmoid(x) * sigmoid(-x); }},
      {"silu", ops::silu, [](double x) { return x * sigmoid(x); },
       [](double x) { return sigmoid(x) + x * sigmoid(x) * sigmoid(-x); }},
      {"add", [](const Tensor& x) { return ops::add(x, 0.75f); }, [](double x) { return x + 0.75; },
       [](double) { return 1.0; }},
      {"softplus", ops::softplus, [](double x) { return std::log1p(std::exp(x)); }, sigmoid},
      {"pow", [](const Tensor& x) { return ops::pow(x, 1.5f); },
       [](double x) { return std::pow(x, 1.5); }, [](double x) { return 1.5 * std::sqrt(x); },
       0.5f},
      {"pow of a negative number", [](const Tensor& x) { return ops::pow(x, 3); },
       [](double x) { return x * x * x; }, [](double x) { return 3 * x * x; }},
      {"clamp", [](const Tensor& x) { return ops::clamp(x, -1, 2); },
       [](double x) { return std::min(std::max(x, -1.0), 2.0); },
       [](double x) { return x < -1 || x > 2 ? 0.0 : 1.0; }}};
  return list;
}

// Returns the largest difference between `actual` and `expected`, divided by the largest magnitude
// in `expected` and `from`. `from` is the gradient dy from which backward computed `actual`.
// Returns infinity if a difference is NaN.
double error_beside(const Tensor& actual, const Values& expected, const Values& from) {
  double largest = 1e-30, difference = 0;
  const Values values = values_of(actual);
  for (size_t i = 0; i < values.size(); ++i) {
    largest = std::max({largest, std::fabs(expected[i]), std::fabs(from[i])});
    difference = larger_difference(difference, std::fabs(values[i] - expected[i]));
  }
  return difference / largest;
}

TEST_CASE("unary operations and their gradients equal float64", "[elementwise]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Shape shape = GENERATE(values<Shape>({{}, {0}, {7}, {3, 1, 211}}));
  for (const Case& c : cases()) {
    CAPTURE(c.name, dtype_name(dtype), shape.elements());
    const Tensor x = as_parameter(random_tensor_of(dtype, shape, 1, c.low, c.high));
    const Tensor dy = random_tensor_of(dtype, shape, 2);
    Values y = values_of(x), dx = values_of(dy);
    for (size_t i = 0; i < y.size(); ++i) {
      dx[i] *= c.slope(y[i]);
      y[i] = c.value(y[i]);
    }
    const Tensor actual = c.operation(x);
    REQUIRE(actual.shape() == shape);
    CHECK(relative_error(actual, y) <= tolerance(dtype, 1, 1e-6));
    backward_from(actual, dy);
    // Some gradients are computed from the rounded result. If the result is near 1, tanh's gradient
    // (1 - y^2) dy loses precision. So the error is compared with the magnitude of dy, too.
    CHECK(error_beside(x.leaf()->gradient, dx, values_of(dy)) <= tolerance(dtype, 4, 2e-6));
  }
}

TEST_CASE("gradients of unary operations agree with finite differences", "[elementwise]") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    Tensor x = random_tensor({5, 4}, 3, c.low, c.high);
    // Moves values away from the kinks of abs and clamp. The distance must exceed the step of the
    // finite differences.
    for (float& value : x.values<float>()) {
      for (const float corner : {-1.0f, 0.0f, 2.0f}) {
        if (std::fabs(value - corner) < 0.1f) value = corner + 0.1f;
      }
    }
    CHECK(check_gradient([&](const auto& in) { return c.operation(in[0]); }, {x}));
  }
}

TEST_CASE("unary operations at zero, infinity, NaN and large values", "[elementwise]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto of = [](Tensor (*operation)(const Tensor&), float x) {
    return operation(Tensor::from<float>({1}, {x})).item();
  };
  CHECK(of(ops::log, 0) == -infinity);
  CHECK(of(ops::log, infinity) == infinity);
  CHECK(std::isnan(of(ops::log, -1)));
  CHECK(of(ops::log, 1) == 0);
  CHECK(of(ops::log, 1e-42f) == Approx(std::log(double{1e-42f})));
  CHECK(of(ops::log, std::numeric_limits<float>::max()) == Approx(88.722839));
  CHECK(of(ops::exp, -infinity) == 0);
  CHECK(of(ops::exp, 1000) == infinity);
  CHECK(of(ops::sigmoid, -1000) == 0);
  CHECK(of(ops::sigmoid, 1000) == 1);
  CHECK(of(ops::silu, -1000) == 0);
  CHECK(of(ops::softplus, -20) == Approx(std::log1p(std::exp(-20.0))).epsilon(1e-6));
  CHECK(of(ops::softplus, -1000) == 0);
  CHECK(of(ops::softplus, 1000) == 1000);
  CHECK(of(ops::sqrt, 0) == 0);
  CHECK(of(ops::reciprocal, 0) == infinity);
  CHECK_FALSE(std::signbit(of(ops::abs, -0.0f)));
  const float nan = std::nanf("");
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    CHECK(std::isnan(c.operation(Tensor::from<float>({1}, {nan})).item()));
  }
}

TEST_CASE("unary operations keep only what their gradient needs", "[elementwise]") {
  const auto activations = [] {
    return memory_ledger(default_device()).current(Category::activations);
  };
  const Tensor parameter = as_parameter(random_tensor({100}, 1, 0.5f, 1));
  const auto kept = [&](const std::function<Tensor(const Tensor&)>& operation) {
    const int64_t before = activations();
    const Tensor y = ops::neg(operation(ops::scale(parameter, 2)));
    return (activations() - before) / y.bytes() - 1;  // number of kept tensors besides y
  };
  CHECK(kept(ops::exp) == 1);
  CHECK(kept(ops::log) == 1);
  CHECK(kept(ops::neg) == 0);
  CHECK(kept([](const Tensor& x) { return x + 1.0f; }) == 0);
}

TEST_CASE("unary operations have the same bits for every number of threads", "[elementwise]") {
  const Tensor x = random_tensor({70001}, 1, 0.5f, 2), dy = random_tensor({70001}, 2);
  REQUIRE(same_bits_for_any_threads([&] {
    std::vector<Tensor> results;
    for (const Case& c : cases()) {
      const Tensor parameter = as_parameter(x), y = c.operation(parameter);
      backward_from(y, dy);
      results.insert(results.end(), {y, parameter.leaf()->gradient});
    }
    return results;
  }));
}

TEST_CASE("clamp refuses bounds in the wrong order", "[elementwise]") {
  REQUIRE_THROWS_WITH(ops::clamp(random_tensor({2}, 1), 1, -1),
                      "clamp: bounds are 1 and -1, expected the lower one first");
}

}  // namespace
}  // namespace tessera::test
