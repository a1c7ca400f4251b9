// Compares batch_norm's results and gradients with float64, also for a batch whose rows are divided
// into two parts. The bits must depend neither on threads nor on alignment.
#include <cmath>
#include <utility>

#include "core/check_gradient.h"
#include "core/image_ops.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

constexpr float epsilon = 1e-5f;

struct Inputs {
  explicit Inputs(int64_t rows, int64_t channels, DType dtype = DType::f32)
      : x(random_tensor_of(dtype, {rows, channels}, 1, -2, 3)),
        weight(random_tensor_of(dtype, {channels}, 2, 0.5f, 1.5f)),
        bias(random_tensor_of(dtype, {channels}, 3)),
        residual(random_tensor_of(dtype, {rows, channels}, 4)),
        dy(random_tensor_of(dtype, {rows, channels}, 5)),
        mean(random_tensor({channels}, 6)),
        variance(random_tensor({channels}, 7, 0.5f, 2)) {}

  Tensor x, weight, bias, residual, dy;
  Tensor mean, variance;  // the input statistics of batch_norm_with
};

struct Form {
  bool given = false;  // mean and variance are inputs
  bool residual = false;
  bool relu = false;
};

struct Outputs {
  Tensor y, mean, variance, dx, dweight, dbias, dresidual;

  std::vector<Tensor> all() const { return {y, mean, variance, dx, dweight, dbias}; }
};

Outputs run(const Inputs& in, Form form, const ops::BatchParts& parts = {}) {
  const Tensor x = as_parameter(in.x), residual = as_parameter(in.residual);
  // An operation must announce that it uses weight and bias. Reading weight or bias before the
  // announcement fails.
  GatheredParameter weight(in.weight), bias(in.bias);
  const Tensor added = form.residual ? residual : Tensor{};
  const ops::BatchNormOptions options{.epsilon = epsilon, .relu = form.relu};
  ops::BatchNorm result{.y = {}, .mean = in.mean, .variance = in.variance};
  if (form.given) {
    result.y = ops::batch_norm_with(in.mean, in.variance, x, weight.tensor, bias.tensor, added,
                                    options);
  } else {
    result = ops::batch_norm(x, weight.tensor, bias.tensor, added, options, parts);
  }
  backward_from(result.y, in.dy);
  return {result.y, result.mean, result.variance, gradient_of(x), weight.gradient(),
          bias.gradient(), gradient_of(residual)};
}

struct Reference {
  Values y, mean, variance, dx, dweight, dbias, dresidual;
};

/// Computes results and gradients in float64. With relu, rounding may decide whether an element of
/// the result is zero. Therefore the gradient is zero at the elements that are zero in the actual
/// result `y`. Without relu, `y` is not read.
Reference reference(const Inputs& in, Form form, const Values& y) {
  const auto rows = static_cast<size_t>(in.x.size(0));
  const auto channels = static_cast<size_t>(in.x.size(1));
  const Values x = values_of(in.x), w = values_of(in.weight), b = values_of(in.bias);
  const Values more = values_of(in.residual);
  Reference out{x, values_of(in.mean), values_of(in.variance), x, w, w, values_of(in.dy)};
  Values& g = out.dresidual;
  const double n = static_cast<double>(rows);
  for (size_t c = 0; c < channels; ++c) {
    double& mean = out.mean[c];
    double& variance = out.variance[c];
    if (!form.given) {
      mean = variance = 0;
      for (size_t r = 0; r < rows; ++r) mean += x[r * channels + c] / n;
      for (size_t r = 0; r < rows; ++r) variance += std::pow(x[r * channels + c] - mean, 2) / n;
    }
    const double rstd = 1 / std::sqrt(variance + double{epsilon});
    double sum_g = 0, sum_gn = 0;
    for (size_t r = 0; r < rows; ++r) {
      const size_t i = r * channels + c;
      const double normalized = (x[i] - mean) * rstd;
      out.y[i] = normalized * w[c] + b[c] + (form.residual ? more[i] : 0);
      if (form.relu) out.y[i] = std::max(out.y[i], 0.0);
      if (form.relu && y[i] <= 0) g[i] = 0;
      sum_g += g[i];
      sum_gn += g[i] * normalized;
    }
    for (size_t r = 0; r < rows; ++r) {
      const size_t i = r * channels + c;
      const double normalized = (x[i] - mean) * rstd;
      const double through = form.given ? 0 : (sum_g + normalized * sum_gn) / n;
      out.dx[i] = w[c] * rstd * (g[i] - through);
    }
    out.dweight[c] = sum_gn;
    out.dbias[c] = sum_g;
  }
  return out;
}

void check_equal(const Outputs& actual, const Reference& expected, bool residual, DType dtype) {
  CHECK(max_error(actual.mean, expected.mean) < 2e-6);
  CHECK(max_error(actual.variance, expected.variance) < 5e-6);
  CHECK(max_error(actual.y, expected.y) < tolerance(dtype, 1, 1e-5));
  CHECK(max_error(actual.dx, expected.dx) < tolerance(dtype, 1, 5e-5));
  CHECK(relative_error(actual.dweight, expected.dweight) < tolerance(dtype, 1, 1e-5));
  CHECK(relative_error(actual.dbias, expected.dbias) < tolerance(dtype, 1, 1e-5));
  REQUIRE(actual.dresidual.defined() == residual);
  if (residual) CHECK(max_error(actual.dresidual, expected.dresidual) == 0);
}

Form forms() {
  return GENERATE(Form{}, Form{.relu = true}, Form{.residual = true},
                  Form{.residual = true, .relu = true}, Form{.given = true},
                  Form{.given = true, .residual = true, .relu = true});
}

TEST_CASE("batch_norm against float64", "[batch_norm]") {
  const auto [rows, channels] = GENERATE(table<int64_t, int64_t>(
      {{2, 1}, {2, 5}, {300, 3}, {715, 16}, {137, 17}, {45, 64}, {9, 256}, {70, 300}, {3, 2048}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Form form = forms();
  const Inputs in(rows, channels, dtype);
  const Outputs actual = run(in, form);
  check_equal(actual, reference(in, form, values_of(actual.y)), form.residual, dtype);
}

TEST_CASE("batch_norm of many rows", "[batch_norm]") {
  const auto [rows, channels] =
      GENERATE(table<int64_t, int64_t>({{9001, 1}, {40003, 3}, {18765, 16}, {2100, 70}}));
  const Inputs in(rows, channels);
  const Form form{.relu = true};
  const Outputs actual = run(in, form);
  check_equal(actual, reference(in, form, values_of(actual.y)), false, DType::f32);
}

TEST_CASE("batch_norm of values far from zero", "[batch_norm]") {
  const int64_t channels = GENERATE(1, 16, 70);
  Inputs in(5000, channels);
  for (float& value : in.x.values<float>()) value = 1000 + value / 250;
  const Outputs actual = run(in, {});
  const Reference expected = reference(in, {}, {});
  // Near 1000, adjacent f32 values are 6e-5 apart, which is 1 % of the standard deviation. A mean
  // may be off by 6e-5.
  for (size_t c = 0; c < expected.mean.size(); ++c) {
    CHECK(std::abs(values_of(actual.mean)[c] - expected.mean[c]) < 1e-4);
    CHECK(values_of(actual.variance)[c] == Catch::Approx(expected.variance[c]).epsilon(1e-3));
  }
  CHECK(max_error(actual.y, expected.y) < 0.02);
}

TEST_CASE("batch_norm passes the check of its gradient", "[batch_norm]") {
  const Form form = forms();
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  // Normalized values of 6 rows have magnitudes below sqrt(6). Weights and residuals have
  // magnitudes of at most 0.3. So without the bias, all results have magnitudes below
  // 0.3 * sqrt(6) + 0.3 = 1.04. A bias of magnitude 1.5 or more keeps the results away from zero,
  // where relu has its kink.
  const int64_t channels = GENERATE(1, 3);
  const Shape shape{2, 1, 3, channels};
  Tensor bias = random_tensor({channels}, 3, 1.5f, 2);
  bias.data<float>()[0] *= -1;
  const Tensor mean = random_tensor({channels}, 6, -0.1f, 0.1f);
  const Tensor variance = random_tensor({channels}, 7, 0.5f, 1);
  const auto operation = [&](const std::vector<Tensor>& in) {
    const Tensor residual = form.residual ? in[3] : Tensor{};
    const ops::BatchNormOptions to{.relu = form.relu};
    if (form.given) {
      return ops::batch_norm_with(mean, variance, in[0], in[1], in[2], residual, to);
    }
    return ops::batch_norm(in[0], in[1], in[2], residual, to).y;
  };
  std::vector<Tensor> inputs{random_tensor(shape, 1), random_tensor({channels}, 2, 0.2f, 0.3f),
                             bias};
  if (form.residual) inputs.push_back(random_tensor(shape, 4, -0.3f, 0.3f));
  REQUIRE(check_gradient(operation, inputs, options));
}

/// Imitates two ranks on one thread. Each rank computes one part of a batch. In each round, part 0
/// runs, then part 1. A run calls BatchParts::sum three times. The other part's values for a sum
/// come from the other part's latest run.
///
/// In the first round, part 0 gets wrong sums, because part 1 has not run yet. The values for a sum
/// depend only on the run's earlier sums. So each later round corrects at least one more of the
/// three sums, and all sums of the fourth round are correct.
class TwoParts {
 public:
  ops::BatchParts part(size_t self) {
    calls_ = 0;
    return {2, [this, self](const Tensor& x) {
              std::vector<Tensor>& own = given_[self];
              const size_t call = calls_++;
              if (own.size() == call) own.emplace_back();
              own[call] = Tensor::empty(x.shape());
              own[call].copy_from(x);
              if (call >= given_[1 - self].size()) return;
              kernels::add(test_context(), x, given_[0][call], given_[1][call]);
            }};
  }
  size_t calls() const { return calls_; }

 private:
  size_t calls_ = 0;
  std::vector<Tensor> given_[2];
};

TEST_CASE("batch_norm over several parts equals batch_norm of all rows together", "[batch_norm]") {
  const Form form = GENERATE(Form{}, Form{.residual = true, .relu = true});
  const int64_t rows = GENERATE(1, 150), channels = GENERATE(1, 17);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Inputs all(2 * rows, channels, dtype);
  Inputs halves[2] = {all, all};
  for (int64_t part = 0; part < 2; ++part) {
    Inputs& half = halves[part];
    for (Tensor* tensor : {&half.x, &half.residual, &half.dy}) {
      *tensor = tensor->rows(part * rows, (part + 1) * rows);
    }
  }
  TwoParts parts;
  Outputs out[2];
  for (int round = 0; round < 4; ++round) {
    for (const size_t part : {0u, 1u}) {
      out[part] = run(halves[part], form, parts.part(part));
      CHECK(parts.calls() == 3);
    }
  }
  CHECK(same_bits(out[0].mean, out[1].mean));
  CHECK(same_bits(out[0].variance, out[1].variance));
  const auto joined = [](const Tensor& a, const Tensor& b) {
    Values result = values_of(a);
    for (const double value : values_of(b)) result.push_back(value);
    return result;
  };
  const Reference expected = reference(all, form, joined(out[0].y, out[1].y));
  CHECK(max_error(out[0].mean, expected.mean) < 2e-6);
  CHECK(max_error(out[0].variance, expected.variance) < 5e-6);
  const auto count = static_cast<ptrdiff_t>(rows * channels);
  for (const ptrdiff_t part : {0, 1}) {
    const auto rows_of = [&](const Values& values) {
      return Values(values.begin() + part * count, values.begin() + (part + 1) * count);
    };
    const Outputs& own = out[part];
    CHECK(max_error(own.y, rows_of(expected.y)) < tolerance(dtype, 1, 1e-5));
    CHECK(max_error(own.dx, rows_of(expected.dx)) < tolerance(dtype, 1, 5e-5));
    if (form.residual) CHECK(max_error(own.dresidual, rows_of(expected.dresidual)) == 0);
  }
  // Each part computes weight gradients from its own rows only. In training, the reduction of
  // gradients adds up the parts.
  const auto check_sum = [&](const Tensor& a, const Tensor& b, const Values& sum) {
    const Values first = values_of(a), second = values_of(b);
    for (size_t i = 0; i < sum.size(); ++i) {
      const double size = 1 + std::abs(first[i]) + std::abs(second[i]);
      CHECK(std::abs(first[i] + second[i] - sum[i]) < size * tolerance(dtype, 1, 1e-5));
    }
  };
  check_sum(out[0].dweight, out[1].dweight, expected.dweight);
  check_sum(out[0].dbias, out[1].dbias, expected.dbias);
}

TEST_CASE("batch_norm's bits depend neither on threads nor on alignment", "[batch_norm]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const auto [rows, channels] =
      GENERATE(table<int64_t, int64_t>({{7001, 16}, {6003, 3}, {150, 300}}));
  const Form form = GENERATE(Form{}, Form{.residual = true, .relu = true});
  const Inputs in(rows, channels, dtype);
  REQUIRE(same_bits_for_any_threads([&] { return run(in, form).all(); }));
  // The bits must be equal if x, residual and dy begin one element after an aligned address.
  Inputs moved = in;
  for (Tensor* tensor : {&moved.x, &moved.residual, &moved.dy}) {
    const Tensor room = Tensor::empty({tensor->elements() + 1}, dtype);
    const Tensor other = room.flat(1, room.elements()).view(tensor->shape());
    kernels::copy(test_context(), other, *tensor);
    *tensor = other;
  }
  const std::vector<Tensor> expected = run(in, form).all(), actual = run(moved, form).all();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(actual[i], expected[i]));
  }
}

TEST_CASE("batch_norm computes only the gradients that are wanted", "[batch_norm]") {
  const Inputs in(20, 5);
  const Form form{.given = GENERATE(false, true), .residual = true, .relu = GENERATE(false, true)};
  const Outputs expected = run(in, form);
  const size_t wanted = GENERATE(0u, 1u, 2u, 3u);
  std::vector<Tensor> inputs{in.x, in.weight, in.bias, in.residual};
  inputs[wanted] = as_parameter(inputs[wanted]);
  const ops::BatchNormOptions options{.relu = form.relu};
  const auto apply = [&](const auto&... x) {
    if (form.given) return ops::batch_norm_with(in.mean, in.variance, x..., options);
    return ops::batch_norm(x..., options).y;
  };
  backward_from(apply(inputs[0], inputs[1], inputs[2], inputs[3]), in.dy);
  const Tensor all[] = {expected.dx, expected.dweight, expected.dbias, expected.dresidual};
  CHECK(same_bits(gradient_of(inputs[wanted]), all[wanted]));
}

TEST_CASE("batch_norm keeps no more than its gradient needs", "[batch_norm]") {
  const auto activations = [] { return memory_ledger().current(Category::activations); };
  const bool relu = GENERATE(false, true);
  const Inputs in(20, 5);
  const Tensor x = as_parameter(in.x);
  const int64_t start = activations();
  Tensor loss;
  {
    const ops::BatchNorm result = ops::batch_norm(x, in.weight, in.bias, {}, {.relu = relu});
    loss = ops::sum(result.y);
  }
  const int64_t statistics = 2 * 5 * int64_t{sizeof(float)};
  CHECK(activations() - start == loss.bytes() + statistics + (relu ? x.bytes() : 0));
}

TEST_CASE("an empty batch has zero gradients for weight and bias", "[batch_norm]") {
  const Outputs out = run(Inputs(0, 8), {.given = true});
  CHECK(out.y.shape() == Shape{0, 8});
  CHECK(same_bits(out.dweight, Tensor::zeros({8})));
  CHECK(same_bits(out.dbias, Tensor::zeros({8})));
}

TEST_CASE("batch_norm with relu propagates NaN", "[batch_norm]") {
  Inputs in(4, 2);
  in.x.data<float>()[2] = std::nanf("");
  const Values y = values_of(ops::batch_norm(in.x, in.weight, in.bias, {}, {.relu = true}).y);
  for (size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i % 2 == 0));
}

TEST_CASE("batch_norm of equal rows is the bias, however large they are", "[batch_norm]") {
  const int64_t rows = GENERATE(2, 300);
  const Inputs in(rows, 8);
  const Tensor x = Tensor::full({rows, 8}, 2e19f);  // the square overflows f32
  const Values y = values_of(ops::batch_norm(x, in.weight, in.bias).y);
  const Values bias = values_of(in.bias);
  for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == Approx(bias[i % 8]));
}

TEST_CASE("batch_norm refuses invalid arguments", "[batch_norm]") {
  using Catch::Matchers::ContainsSubstring;
  const Inputs in(4, 8);
  const auto apply = [&](const Tensor& x, const Tensor& weight, const Tensor& residual = {}) {
    return ops::batch_norm(x, weight, in.bias, residual);
  };
  CHECK_THROWS_WITH(apply(in.x, Tensor::full({4}, 1)),
                    "batch_norm: weight has shape [4], expected [8]");
  CHECK_THROWS_WITH(ops::batch_norm_with(in.mean, in.mean, Tensor::zeros({4, 0}),
                                         Tensor::zeros({0}), Tensor::zeros({0})),
                    "batch_norm: weight has shape [0], expected at least one channel");
  CHECK_THROWS_WITH(apply(in.x, in.weight, in.x.rows(0, 2)),
                    "batch_norm: residual has shape [2, 8], expected [4, 8]");
  CHECK_THROWS_WITH(apply(in.x, in.weight, rounded_to(DType::bf16, in.x)),
                    "batch_norm: residual has dtype bf16, expected f32");
  CHECK_THROWS_WITH(apply(in.x.rows(0, 1), in.weight),
                    ContainsSubstring("batch_norm: x has shape [1, 8], 1 rows of channels; a "
                                      "variance needs more than one value per channel"));
  CHECK_THROWS_WITH(apply(in.x.rows(0, 0), in.weight),
                    ContainsSubstring("x has shape [0, 8], 0 rows"));
  CHECK_THROWS_WITH(ops::batch_norm(in.x, in.weight, in.bias, {}, {}, {.count = 2, .sum = {}}),
                    ContainsSubstring("2 parts without a sum over them"));
  CHECK_THROWS_WITH(ops::batch_norm_with(in.mean, Tensor::full({4}, 1), in.x, in.weight, in.bias),
                    "batch_norm: the given statistics are [4] of dtype f32, expected [8] of dtype "
                    "f32");
}

}  // namespace
}  // namespace tessera::test
