// Compares results and gradients of softmax, log_softmax and logsumexp with float64. Also tests
// infinities and NaN. Bits must not depend on threads.
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

/// Computes the logsumexp of each run (runs.h) and the probabilities of all elements in float64.
struct Statistics {
  Values logsumexp;
  Values p;

  Statistics(const RunsReference& runs, const Values& x) : logsumexp(runs.count), p(x.size()) {
    Values largest(runs.count, -HUGE_VAL), sums(runs.count, 0.0);
    for (size_t i = 0; i < x.size(); ++i) {
      largest[runs.of[i]] = std::max(largest[runs.of[i]], x[i]);
    }
    for (size_t i = 0; i < x.size(); ++i) sums[runs.of[i]] += std::exp(x[i] - largest[runs.of[i]]);
    for (size_t run = 0; run < runs.count; ++run) {
      logsumexp[run] = largest[run] + std::log(sums[run]);
    }
    for (size_t i = 0; i < x.size(); ++i) p[i] = std::exp(x[i] - logsumexp[runs.of[i]]);
  }
};

Values run_sums(const RunsReference& runs, const Values& values) {
  Values sums(runs.count, 0.0);
  for (size_t i = 0; i < values.size(); ++i) sums[runs.of[i]] += values[i];
  return sums;
}

TEST_CASE("softmax and its gradient equal float64", "[softmax]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const RunCase c = GENERATE(from_range(run_cases()));
  CAPTURE(c.shape, c.dims, dtype_name(dtype));
  const RunsReference runs(c);
  const Tensor x = as_parameter(random_tensor_of(dtype, c.shape, 1, -4, 4));
  const Tensor dy = random_tensor_of(dtype, c.shape, 2);
  const Statistics expected(runs, values_of(x));
  const Tensor y = ops::softmax(x, c.dims);
  REQUIRE(y.shape() == c.shape);
  REQUIRE(y.dtype() == dtype);
  CHECK(relative_error(y, expected.p) <= tolerance(dtype, 1, 1e-6));
  Values dx = values_of(dy);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= expected.p[i];
  const Values sums = run_sums(runs, dx);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] -= expected.p[i] * sums[runs.of[i]];
  backward_from(y, dy);
  // If every run has one element, all gradients are zero. A relative error is then undefined.
  if (runs.of.size() == runs.count) {
    CHECK(max_error(x.leaf()->gradient, dx) <= tolerance(dtype, 1, 1e-6));
  } else {
    CHECK(relative_error(x.leaf()->gradient, dx) <= tolerance(dtype, 4, 3e-6));
  }
}

TEST_CASE("log_softmax and its gradient equal float64", "[softmax]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const RunCase c = GENERATE(from_range(run_cases()));
  CAPTURE(c.shape, c.dims, dtype_name(dtype));
  const RunsReference runs(c);
  const Tensor x = as_parameter(random_tensor_of(dtype, c.shape, 1, -4, 4));
  const Tensor dy = random_tensor_of(dtype, c.shape, 2);
  const Values in = values_of(x);
  const Statistics expected(runs, in);
  const Tensor y = ops::log_softmax(x, c.dims);
  REQUIRE(y.shape() == c.shape);
  Values log_p = in;
  for (size_t i = 0; i < in.size(); ++i) log_p[i] -= expected.logsumexp[runs.of[i]];
  CHECK(max_error(y, log_p) <= tolerance(dtype, 1, 2e-6));
  Values dx = values_of(dy);
  const Values sums = run_sums(runs, dx);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] -= expected.p[i] * sums[runs.of[i]];
  backward_from(y, dy);
  // The gradient is computed from the rounded result. The result's magnitude is up to 13, and the
  // error of rounding is proportional to the magnitude. So the bound allows for 16 roundings.
  CHECK(max_error(x.leaf()->gradient, dx) <= tolerance(dtype, 16, 1e-5));
}

TEST_CASE("logsumexp and its gradient equal float64", "[softmax]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const RunCase c = GENERATE(from_range(run_cases()));
  CAPTURE(c.shape, c.dims, dtype_name(dtype));
  const RunsReference runs(c);
  // Rounding a result near 300 to bf16 changes it by up to 1. A gradient computed from the rounded
  // result would be far off.
  const Tensor x = as_parameter(random_tensor_of(dtype, c.shape, 1, 300, 308));
  const Statistics expected(runs, values_of(x));
  const Tensor y = ops::logsumexp(x, c.dims);
  REQUIRE(y.shape() == runs.gone);
  REQUIRE(y.dtype() == dtype);
  REQUIRE(ops::logsumexp(x, c.dims, true).shape() == runs.ones);
  CHECK(relative_error(y, expected.logsumexp) <= tolerance(dtype, 1, 1e-6));
  const Tensor dy = random_tensor_of(dtype, y.shape(), 2);
  const Values grad = values_of(dy);
  Values dx = expected.p;
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= grad[runs.of[i]];
  backward_from(y, dy);
  CHECK(relative_error(x.leaf()->gradient, dx) <= tolerance(dtype, 1, 1e-6));
}

TEST_CASE("gradients of the softmax family agree with finite differences", "[softmax]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())), .roundings = 8};
  const Tensor x = random_tensor({3, 4, 5}, 1, -2, 2);
  for (const std::vector<int>& dims : {std::vector{2}, {1}, {0, 2}}) {
    CAPTURE(dims);
    CHECK(check_gradient([&](const auto& in) { return ops::softmax(in[0], dims); }, {x}, options));
    CHECK(check_gradient([&](const auto& in) { return ops::log_softmax(in[0], dims); }, {x},
                         options));
    CHECK(check_gradient([&](const auto& in) { return ops::logsumexp(in[0], dims, true); }, {x},
                         options));
  }
}

TEST_CASE("the softmax family neither overflows nor hides NaN and infinity", "[softmax]") {
  const auto of = [](Tensor (*operation)(const Tensor&, const std::vector<int>&),
                     const std::vector<float>& x) {
    return values_of(operation(Tensor::from<float>({1, std::ssize(x)}, x), {1}));
  };
  const auto sum_of = [](const std::vector<float>& x) {
    return ops::logsumexp(Tensor::from<float>({std::ssize(x)}, x), {0}).item();
  };
  CHECK(of(ops::softmax, {1e30f, 0, -1e30f}) == Values{1, 0, 0});
  CHECK(of(ops::softmax, {-infinity, 3, -infinity}) == Values{0, 1, 0});
  CHECK(of(ops::log_softmax, {1000, 0}) == Values{0, -1000});
  CHECK(of(ops::log_softmax, {-infinity, 3})[0] == double{-infinity});
  CHECK(std::isnan(of(ops::softmax, {-infinity, -infinity})[0]));
  CHECK(std::isnan(of(ops::softmax, {1, std::nanf("")})[0]));
  CHECK(std::isnan(of(ops::log_softmax, {std::nanf(""), 1})[1]));
  CHECK(std::isnan(of(ops::softmax, {1, infinity})[1]));
  CHECK(sum_of({-infinity, -infinity}) == -infinity);
  CHECK(sum_of({}) == -infinity);
  CHECK(sum_of({infinity, 1}) == infinity);
  CHECK(std::isnan(sum_of({infinity, std::nanf("")})));
  CHECK(sum_of({3e38f, 3e38f}) == 3e38f);
}

TEST_CASE("logsumexp of long runs is precise", "[softmax]") {
  const Shape shape = GENERATE(values<Shape>({{1, 300000}, {300000, 1}, {100000, 3}}));
  const int dim = shape[0] == 1 ? 1 : 0;
  const Tensor x = Tensor::full(shape, 0.1f);
  const double expected = double{0.1f} + std::log(static_cast<double>(shape[dim]));
  CHECK(values_of(ops::logsumexp(x, {dim}))[0] == Approx(expected).epsilon(2e-7));
}

TEST_CASE("the softmax family has the same bits for every number of threads", "[softmax]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    std::vector<Tensor> results;
    for (const std::vector<int>& dims : {std::vector{0}, {1}, {2}, {0, 2}}) {
      for (const auto operation : {ops::softmax, ops::log_softmax}) {
        const Tensor x = as_parameter(random_tensor_of(dtype, {17, 40, 70}, 1));
        const Tensor y = operation(x, dims);
        backward_from(y, random_tensor_of(dtype, y.shape(), 2));
        results.insert(results.end(), {y, x.leaf()->gradient});
      }
      const Tensor x = as_parameter(random_tensor_of(dtype, {17, 40, 70}, 1));
      const Tensor y = ops::logsumexp(x, dims);
      backward(ops::sum(y));
      results.insert(results.end(), {y, x.leaf()->gradient});
    }
    return results;
  }));
}

TEST_CASE("softmax and log_softmax keep only their result, logsumexp its input", "[softmax]") {
  const auto activations = [] {
    return memory_ledger(default_device()).current(Category::activations);
  };
  const Tensor parameter = as_parameter(random_tensor({10, 100}, 1));
  const auto kept = [&](const std::function<Tensor(const Tensor&)>& operation) {
    const int64_t before = activations();
    const Tensor y = operation(ops::scale(parameter, 2));
    return activations() - before - y.bytes();
  };
  const int64_t bytes = parameter.bytes();
  CHECK(kept([](const Tensor& x) { return ops::softmax(x, {1}); }) == 0);
  CHECK(kept([](const Tensor& x) { return ops::log_softmax(x, {1}); }) == 0);
  CHECK(kept([](const Tensor& x) { return ops::logsumexp(x, {1}); }) == bytes);
}

TEST_CASE("the softmax family refuses invalid arguments", "[softmax]") {
  const Tensor x = Tensor::empty({2, 3});
  REQUIRE_THROWS_WITH(ops::softmax(x, {2}), "softmax: there is no dimension 2 in shape [2, 3]");
  REQUIRE_THROWS_WITH(ops::log_softmax(x, {1, 1}), "log_softmax: dimension 1 is given twice");
  REQUIRE_THROWS_WITH(ops::logsumexp(x, {-3}),
                      "logsumexp: there is no dimension -3 in shape [2, 3]");
  REQUIRE_THROWS_WITH(ops::softmax(Tensor::empty({2}, DType::i32), {0}),
                      "softmax: dtype i32 is not supported, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace tessera::test
