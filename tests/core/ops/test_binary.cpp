// Tests the binary elementwise operations, which broadcast their inputs. Also tests comparisons,
// ops::where, operators such as +, and sums and means over dimensions.
#include "core/ops/binary.h"

#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/broadcast.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

using Operation = Tensor (*)(const Tensor&, const Tensor&);

struct Case {
  const char* name;
  Operation operation;
  double (*value)(double, double);
  double (*slope_a)(double, double);
  double (*slope_b)(double, double);
};

double half_where_equal(double a, double b) { return a > b ? 1 : a == b ? 0.5 : 0; }

const Case cases[] = {
    {"add", ops::add, [](double a, double b) { return a + b; }, [](double, double) { return 1.0; },
     [](double, double) { return 1.0; }},
    {"sub", ops::sub, [](double a, double b) { return a - b; }, [](double, double) { return 1.0; },
     [](double, double) { return -1.0; }},
    {"mul", ops::mul, [](double a, double b) { return a * b; }, [](double, double b) { return b; },
     [](double a, double) { return a; }},
    {"div", ops::div, [](double a, double b) { return a / b; },
     [](double, double b) { return 1 / b; }, [](double a, double b) { return -a / (b * b); }},
    {"maximum", ops::maximum, [](double a, double b) { return std::max(a, b); }, half_where_equal,
     [](double a, double b) { return half_where_equal(b, a); }},
    {"minimum", ops::minimum, [](double a, double b) { return std::min(a, b); },
     [](double a, double b) { return half_where_equal(b, a); }, half_where_equal}};

struct Shapes {
  Shape a, b, y;
};
const std::vector<Shapes>& shapes() {
  static const std::vector<Shapes> list = {{{}, {}, {}},
                                           {{7}, {7}, {7}},
                                           {{3, 5}, {5}, {3, 5}},
                                           {{5}, {3, 5}, {3, 5}},
                                           {{3, 5}, {}, {3, 5}},
                                           {{1}, {2, 3}, {2, 3}},
                                           {{4, 1}, {1, 6}, {4, 6}},
                                           {{2, 1, 3, 1, 5}, {4, 1, 6, 1}, {2, 4, 3, 6, 5}},
                                           {{2, 3, 1, 67}, {3, 4, 67}, {2, 3, 4, 67}},
                                           {{2, 300}, {2, 1}, {2, 300}},
                                           {{0, 3}, {3}, {0, 3}},
                                           {{1, 3}, {0, 1}, {0, 3}}};
  return list;
}

// A tensor of shape `of` is broadcast to shape `y`. Returns the index of the tensor's element that
// is copied to element `index` of the result.
size_t place(const Shape& y, const Shape& of, int64_t index) {
  int64_t result = 0, step = 1;
  for (int dim = 1; dim <= of.rank(); ++dim) {
    const int64_t at = index % y[-dim];
    index /= y[-dim];
    result += of[-dim] == 1 ? 0 : at * step;
    step *= of[-dim];
  }
  return static_cast<size_t>(result);
}

TEST_CASE("binary operations broadcast, and sum gradients over broadcast dimensions",
          "[elementwise]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  for (const Case& c : cases) {
    for (const Shapes& s : shapes()) {
      CAPTURE(c.name, dtype_name(dtype), s.y.elements(), s.a.elements(), s.b.elements());
      const Tensor a = as_parameter(random_tensor_of(dtype, s.a, 1, 0.5f, 2));
      const Tensor b = as_parameter(random_tensor_of(dtype, s.b, 2, 0.5f, 2));
      const Tensor dy = random_tensor_of(dtype, s.y, 3);
      const Values left = values_of(a), right = values_of(b), dys = values_of(dy);
      Values y(dys.size()), da(left.size()), db(right.size());
      for (int64_t i = 0; i < s.y.elements(); ++i) {
        const size_t at = place(s.y, s.a, i), bt = place(s.y, s.b, i);
        const auto n = static_cast<size_t>(i);
        y[n] = c.value(left[at], right[bt]);
        da[at] += dys[n] * c.slope_a(left[at], right[bt]);
        db[bt] += dys[n] * c.slope_b(left[at], right[bt]);
      }
      const Tensor actual = c.operation(a, b);
      REQUIRE(actual.shape() == s.y);
      CHECK(relative_error(actual, y) <= tolerance(dtype, 1, 1e-6));
      backward_from(actual, dy);
      REQUIRE(a.leaf()->gradient.shape() == s.a);
      CHECK(relative_error(a.leaf()->gradient, da) <= tolerance(dtype, 8, 1e-5));
      CHECK(relative_error(b.leaf()->gradient, db) <= tolerance(dtype, 8, 1e-5));
    }
  }
}

TEST_CASE("gradients of binary operations agree with finite differences", "[elementwise]") {
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Tensor a = random_tensor({3, 4}, 1, 2, 3), b = random_tensor({4}, 2, 0.5f, 1);
    const auto operation = [&](const auto& in) { return c.operation(in[0], in[1]); };
    CHECK(check_gradient(operation, {a, b}));
    CHECK(check_gradient([&](const auto& in) { return c.operation(in[1], in[0]); }, {a, b}));
  }
}

TEST_CASE("the gradient of div is accurate where the divisor's square leaves the range of f32",
          "[elementwise]") {
  const Tensor a = as_parameter(Tensor::from<float>({3}, {0, 1e30f, 3}));
  const Tensor b = as_parameter(Tensor::from<float>({3}, {1e-25f, 1e25f, 1e-19f}));
  const Values left = values_of(a), right = values_of(b);
  backward_from(ops::div(a, b), Tensor::full({3}, 1));
  const Values gradient = values_of(b.leaf()->gradient);
  for (size_t i = 0; i < 3; ++i) {
    CAPTURE(left[i], right[i]);
    CHECK(gradient[i] == Catch::Approx(-left[i] / (right[i] * right[i])).epsilon(1e-6));
  }
}

TEST_CASE("the gradient of a dividend is accurate where the divisor's reciprocal is infinite",
          "[elementwise]") {
  const Tensor a = as_parameter(Tensor::zeros({2, 3}));
  const Tensor b = Tensor::from<float>({3}, {1e-39f, 1e-39f, 3});
  const Tensor dy = Tensor::from<float>({2, 3}, {0, 1e-3f, 5, -2e-3f, 0, 7});
  const Values divisors = values_of(b), dys = values_of(dy);
  backward_from(ops::div(a, b), dy);
  const Values gradient = values_of(a.leaf()->gradient);
  for (size_t i = 0; i < 6; ++i) {
    CAPTURE(dys[i], divisors[i % 3]);
    CHECK(gradient[i] == Catch::Approx(dys[i] / divisors[i % 3]).epsilon(1e-6));
  }
}

TEST_CASE("equal inputs of maximum and minimum share the gradient", "[elementwise]") {
  for (const Operation operation : {ops::maximum, ops::minimum}) {
    const Tensor a = as_parameter(Tensor::from<float>({2}, {1, 4}));
    const Tensor b = as_parameter(Tensor::from<float>({2}, {1, 4}));
    backward_from(operation(a, b), Tensor::from<float>({2}, {3, 5}));
    CHECK(values_of(a.leaf()->gradient) == Values{1.5, 2.5});
    CHECK(values_of(b.leaf()->gradient) == Values{1.5, 2.5});
    const Tensor nan = Tensor::from<float>({1}, {std::nanf("")});
    CHECK(std::isnan(operation(nan, Tensor::from<float>({1}, {1})).item()));
    CHECK(std::isnan(operation(Tensor::from<float>({1}, {1}), nan).item()));
  }
}

TEST_CASE("comparisons are one or zero, and have no gradient", "[elementwise]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor a = as_parameter(rounded_to(dtype, Tensor::from<float>({4}, {1, 2, 3, NAN})));
  const Tensor b = rounded_to(dtype, Tensor::from<float>({1}, {2}));
  CHECK(values_of(ops::equal(a, b)) == Values{0, 1, 0, 0});
  CHECK(values_of(ops::not_equal(a, b)) == Values{1, 0, 1, 1});
  CHECK(values_of(ops::less(a, b)) == Values{1, 0, 0, 0});
  CHECK(values_of(ops::less_equal(a, b)) == Values{1, 1, 0, 0});
  CHECK(values_of(ops::greater(a, b)) == Values{0, 0, 1, 0});
  CHECK(values_of(ops::greater_equal(a, b)) == Values{0, 1, 1, 0});
  CHECK(ops::less(a, b).dtype() == dtype);
  CHECK_FALSE(ops::less(a, b).requires_grad());
}

TEST_CASE("where selects elements, and ignores NaN and infinity that it does not select",
          "[elementwise]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const auto of = [&](const Shape& shape, const std::vector<float>& values) {
    return as_parameter(rounded_to(dtype, Tensor::from<float>(shape, values)));
  };
  const Tensor mask = of({2, 1}, {1, 0}), a = of({2}, {3, -4}),
               b = of({2, 2}, {NAN, INFINITY, 5, 6});
  const Tensor y = ops::where(mask.detach(), a, b);
  CHECK(values_of(y) == Values{3, -4, 5, 6});
  backward_from(y, rounded_to(dtype, Tensor::from<float>({2, 2}, {1, 2, 3, 4})));
  CHECK(values_of(a.leaf()->gradient) == Values{1, 2});
  CHECK(values_of(b.leaf()->gradient) == Values{0, 0, 3, 4});
}

TEST_CASE("arithmetic operators work on tensors and numbers", "[elementwise]") {
  const Tensor a = Tensor::from<float>({2}, {1, 4}), b = Tensor::from<float>({1}, {2});
  CHECK(values_of(a + b) == Values{3, 6});
  CHECK(values_of(a - b) == Values{-1, 2});
  CHECK(values_of(a * b) == Values{2, 8});
  CHECK(values_of(a / b) == Values{0.5, 2});
  CHECK(values_of(-a) == Values{-1, -4});
  CHECK(values_of(a + 1.0f) == Values{2, 5});
  CHECK(values_of(1.0f - a) == Values{0, -3});
  CHECK(values_of(2.0f * a - 1.0f) == Values{1, 7});
  CHECK(values_of(a / 2.0f) == Values{0.5, 2});
  CHECK(values_of(2.0f / a) == Values{2, 0.5});
}

TEST_CASE("binary operations take parameters that are gathered only while in use",
          "[elementwise]") {
  for (const Case& c : cases) {
    GatheredParameter a(random_tensor({3, 4}, 1, 0.5f, 2)), b(random_tensor({4}, 2, 0.5f, 2));
    backward_from(c.operation(a.tensor, b.tensor), random_tensor({3, 4}, 3));
    CHECK(a.gradient().shape() == Shape{3, 4});
    CHECK(b.gradient().shape() == Shape{4});
    const bool linear = std::string(c.name) == "add" || std::string(c.name) == "sub";
    CHECK(a.uses == (linear ? 1 : 2));
  }
}

TEST_CASE("sums and means over dimensions", "[elementwise]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  struct Over {
    std::vector<int> dims;
    Shape gone, kept;
  };
  const Shape shape{2, 3, 70, 5};
  for (const Over& over : std::vector<Over>{{{-1}, {2, 3, 70}, {2, 3, 70, 1}},
                                            {{0}, {3, 70, 5}, {1, 3, 70, 5}},
                                            {{1, 3}, {2, 70}, {2, 1, 70, 1}},
                                            {{-2, 0}, {3, 5}, {1, 3, 1, 5}},
                                            {{0, 1, 2, 3}, {}, {1, 1, 1, 1}},
                                            {{}, shape, shape}}) {
    const Tensor x = as_parameter(random_tensor_of(dtype, shape, 1));
    const Values in = values_of(x);
    Values sums(static_cast<size_t>(over.kept.elements())), slopes(in.size());
    const Tensor dy = random_tensor_of(dtype, over.kept, 2);
    for (int64_t i = 0; i < x.elements(); ++i) {
      sums[place(shape, over.kept, i)] += in[static_cast<size_t>(i)];
      slopes[static_cast<size_t>(i)] = values_of(dy)[place(shape, over.kept, i)];
    }
    const Tensor y = ops::sum(x, over.dims, true);
    CHECK(ops::sum(x, over.dims).shape() == over.gone);
    REQUIRE(y.shape() == over.kept);
    CHECK(relative_error(y, sums) <= tolerance(dtype, 1, 1e-6));
    backward_from(y, dy);
    CHECK(relative_error(x.leaf()->gradient, slopes) == 0);
    const auto count = static_cast<double>(x.elements() / over.kept.elements());
    for (double& sum : sums) sum /= count;
    CHECK(relative_error(ops::mean(x, over.dims, true), sums) <= tolerance(dtype, 1, 1e-6));
  }
}

TEST_CASE("sums and means over dimensions: gradients, empty sums, errors", "[elementwise]") {
  const Tensor x = random_tensor({3, 4, 2}, 1);
  CHECK(check_gradient([](const auto& in) { return ops::sum(in[0], {1}); }, {x}));
  CHECK(check_gradient([](const auto& in) { return ops::mean(in[0], {0, -1}, true); }, {x}));
  CHECK(values_of(ops::sum(random_tensor({0, 2}, 1), {0})) == Values{0, 0});
  REQUIRE_THROWS_WITH(ops::sum(x, {3}), "sum: there is no dimension 3 in shape [3, 4, 2]");
  REQUIRE_THROWS_WITH(ops::sum(x, {2, -1}), "sum: dimension -1 is given twice");
  REQUIRE_THROWS_WITH(ops::mean(random_tensor({0, 2}, 1), {0}),
                      "mean: shape [0, 2] has no elements along the given dimensions");
}

TEST_CASE("binary operations have the same bits for every number of threads", "[elementwise]") {
  const Tensor a = random_tensor({300, 257}, 1, 0.5f, 2), b = random_tensor({257}, 2, 0.5f, 2);
  const Tensor dy = random_tensor({300, 257}, 3);
  REQUIRE(same_bits_for_any_threads([&] {
    std::vector<Tensor> results;
    for (const Case& c : cases) {
      const Tensor left = as_parameter(a), right = as_parameter(b);
      const Tensor y = c.operation(left, right);
      backward_from(y, dy);
      results.insert(results.end(), {y, left.leaf()->gradient, right.leaf()->gradient});
    }
    results.push_back(ops::sum(a, {1}));
    return results;
  }));
}

TEST_CASE("values that are not selected have the gradient 0, even if dy is infinite",
          "[elementwise]") {
  const Tensor dy = Tensor::full({3}, std::numeric_limits<float>::infinity());
  const auto gradient = [&](const auto& operation) {
    const Tensor x = as_parameter(Tensor::full({3}, -1));
    backward_from(operation(x), dy);
    return values_of(x.leaf()->gradient);
  };
  const Tensor zeros = Tensor::zeros({3});
  CHECK(gradient([](const Tensor& x) { return ops::clamp(x, 0, 1); }) == Values{0, 0, 0});
  CHECK(gradient([&](const Tensor& x) { return ops::maximum(x, zeros); }) == Values{0, 0, 0});
  CHECK(gradient([&](const Tensor& x) { return ops::minimum(zeros, -x); }) == Values{0, 0, 0});
  CHECK(gradient([&](const Tensor& x) { return ops::where(ops::greater(x, zeros), x, zeros); }) ==
        Values{0, 0, 0});
  CHECK(gradient([&](const Tensor& x) { return ops::where(ops::less(x, zeros), zeros, x); }) ==
        Values{0, 0, 0});
}

TEST_CASE("rows that threads divide keep their bits", "[elementwise]") {
  // A row has 1,003 elements. Which rows are divided between two threads depends on the number of
  // threads.
  const Tensor a = random_tensor({131, 1003}, 1, -3, 3), b = random_tensor({1003}, 2, 0, 1);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor left = as_parameter(a), right = as_parameter(b);
    const Tensor loss = ops::bce_with_logits(left, right);
    backward(loss);
    return std::vector<Tensor>{loss, left.leaf()->gradient, right.leaf()->gradient};
  }));
}

TEST_CASE("binary operations refuse invalid arguments", "[elementwise]") {
  REQUIRE_THROWS_WITH(
      ops::div(random_tensor({2, 3}, 1), random_tensor({2}, 1)),
      "div: shapes [2, 3] and [2] do not broadcast: dimension -1 has 3 and 2 elements");
  REQUIRE_THROWS_WITH(ops::sub(random_tensor({2}, 1), Tensor::zeros({2}, DType::bf16)),
                      "sub: the second input has dtype bf16, expected f32");
  REQUIRE_THROWS_WITH(ops::exp(Tensor::zeros({2}, DType::i32)),
                      "exp: dtype i32 is not supported, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace tessera::test
