// Tests max over dimensions: results against float64, gradients with ties, and NaN. Bits must not
// depend on threads.
#include <cmath>
#include <limits>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"
#include "tests/support/runs.h"

namespace tessera::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST_CASE("max is the largest element of each run, which gets the gradient", "[max]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const RunCase c = GENERATE(from_range(run_cases()));
  CAPTURE(c.shape, c.dims, dtype_name(dtype));
  const Tensor x = as_parameter(random_tensor_of(dtype, c.shape, 1, -3, -1));
  const Tensor y = ops::max(x, c.dims);
  const RunsReference runs(c);
  REQUIRE(y.shape() == runs.gone);
  REQUIRE(y.dtype() == dtype);
  REQUIRE(ops::max(x, c.dims, true).shape() == runs.ones);
  const Tensor dy = random_tensor_of(dtype, y.shape(), 2);
  const Values in = values_of(x), grad = values_of(dy);
  Values largest(runs.count, -HUGE_VAL), equals(runs.count, 0.0), dx(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    largest[runs.of[i]] = std::max(largest[runs.of[i]], in[i]);
  }
  for (size_t i = 0; i < in.size(); ++i) equals[runs.of[i]] += in[i] == largest[runs.of[i]];
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t run = runs.of[i];
    dx[i] = in[i] == largest[run] ? grad[run] / equals[run] : 0;
  }
  CHECK(values_of(y) == largest);
  backward_from(y, dy);
  CHECK(relative_error(x.leaf()->gradient, dx) <= tolerance(dtype, 1, 1e-7));
}

TEST_CASE("equal maxima share the gradient", "[max]") {
  const Tensor x = as_parameter(Tensor::from<float>({2, 3}, {1, 4, 4, -2, -2, -2}));
  backward_from(ops::max(x, {1}), Tensor::from<float>({2}, {6, 3}));
  CHECK(values_of(x.leaf()->gradient) == Values{0, 3, 3, 1, 1, 1});
}

TEST_CASE("max propagates NaN and infinity", "[max]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const auto [rows, columns] = GENERATE(table<int64_t, int64_t>({{2, 3}, {2, 200}, {2, 3000}}));
  const bool by_rows = GENERATE(true, false);
  const Tensor plain = random_tensor(by_rows ? Shape{rows, columns} : Shape{columns, rows}, 1);
  const auto at = [&](int64_t row, int64_t column) -> float& {
    return plain.data<float>()[by_rows ? row * columns + column : column * rows + row];
  };
  at(0, 1) = std::nanf("");
  for (int64_t column = 0; column < columns; ++column) at(1, column) = -infinity;
  const Tensor x = as_parameter(rounded_to(dtype, plain));
  const Tensor y = ops::max(x, {by_rows ? 1 : 0});
  CHECK(std::isnan(values_of(y)[0]));
  CHECK(values_of(y)[1] == double{-infinity});
  backward(ops::sum(y));
  const Values dx = values_of(widened(x.leaf()->gradient));
  for (int64_t column = 0; column < columns; ++column) {
    const auto first = static_cast<size_t>(by_rows ? column : column * rows);
    const auto second = static_cast<size_t>(by_rows ? columns + column : column * rows + 1);
    CHECK(std::isnan(dx[first]));
    CHECK(dx[second] == Approx(1.0 / static_cast<double>(columns)).epsilon(4e-3));
  }
}

TEST_CASE("max's gradient agrees with finite differences", "[max]") {
  // All elements differ from each other by more than the steps of the finite differences.
  const Tensor x = random_tensor({4, 3, 2}, 1);
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.data<float>()[i] = static_cast<float>(i * 7 % 24) / 4 - 3;
  }
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const auto check = [&](const std::vector<int>& dims, bool keep) {
    return check_gradient([&](const auto& in) { return ops::max(in[0], dims, keep); }, {x},
                          options);
  };
  CHECK(check({1}, false));
  CHECK(check({-1}, true));
  CHECK(check({0, 2}, true));
}

TEST_CASE("max has the same bits for every number of threads", "[max]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    std::vector<Tensor> results;
    for (const std::vector<int>& dims : {std::vector{0}, {1}, {2}, {0, 2}}) {
      const Tensor x = as_parameter(random_tensor_of(dtype, {30, 70, 90}, 1));
      const Tensor y = ops::max(x, dims);
      backward(ops::sum(y));
      results.insert(results.end(), {y, x.leaf()->gradient});
    }
    return results;
  }));
}

TEST_CASE("max takes a parameter that is gathered only while in use", "[max]") {
  const Tensor x = random_tensor({4, 5}, 1);
  GatheredParameter gathered(x);
  backward(ops::sum(ops::max(gathered.tensor, {0})));
  const Tensor plain = as_parameter(x);
  backward(ops::sum(ops::max(plain, {0})));
  CHECK(same_bits(gathered.gradient(), plain.leaf()->gradient));
}

TEST_CASE("max refuses invalid arguments", "[max]") {
  REQUIRE_THROWS_WITH(ops::max(Tensor::empty({2, 0}), {1}),
                      "max: shape [2, 0] has no elements along the given dimensions");
  REQUIRE_THROWS_WITH(ops::max(Tensor::empty({2, 3}), {2}),
                      "max: there is no dimension 2 in shape [2, 3]");
  REQUIRE_THROWS_WITH(ops::max(Tensor::empty({2, 3}), {0, -2}), "max: dimension -2 is given twice");
  CHECK(ops::max(Tensor::empty({0, 3}), {1}).shape() == Shape{0});
}

}  // namespace
}  // namespace tessera::test
