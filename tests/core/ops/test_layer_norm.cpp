// Compares layer_norm's results and gradients with float64. Bits must depend neither on threads nor
// on alignment.
#include <array>
#include <cmath>
#include <utility>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/copy.h"
#include "core/ops/layer_norm.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr float epsilon = 1e-5f;

struct Inputs {
  explicit Inputs(int64_t rows, int64_t channels, DType dtype = DType::f32)
      : x(random_tensor_of(dtype, {rows, channels}, 1, -2, 3)),
        weight(random_tensor_of(dtype, {channels}, 2, 0.5f, 1.5f)),
        bias(random_tensor_of(dtype, {channels}, 3)),
        dy(random_tensor_of(dtype, {rows, channels}, 4)),
        dsum(random_tensor_of(dtype, {rows, channels}, 5)) {}

  Tensor x, weight, bias, dy, dsum;
};

struct Reference {
  std::vector<double> y, dx, dweight, dbias;
};

Reference reference(const Inputs& in) {
  const auto rows = static_cast<size_t>(in.x.size(0));
  const auto channels = static_cast<size_t>(in.x.size(1));
  const auto x = doubles(in.x), w = doubles(in.weight), b = doubles(in.bias), dy = doubles(in.dy);
  const auto dsum = doubles(in.dsum);
  const double n = static_cast<double>(channels);
  Reference out{x, x, std::vector<double>(channels), std::vector<double>(channels)};
  for (size_t r = 0; r < rows; ++r) {
    const size_t at = r * channels;
    double mean = 0, variance = 0, g_mean = 0, gx_mean = 0;
    for (size_t i = 0; i < channels; ++i) mean += x[at + i] / n;
    for (size_t i = 0; i < channels; ++i) variance += std::pow(x[at + i] - mean, 2) / n;
    const double rstd = 1 / std::sqrt(variance + double{epsilon});
    for (size_t i = 0; i < channels; ++i) {
      const double normalized = (x[at + i] - mean) * rstd;
      out.y[at + i] = normalized * w[i] + b[i];
      out.dweight[i] += dy[at + i] * normalized;
      out.dbias[i] += dy[at + i];
      g_mean += dy[at + i] * w[i] / n;
      gx_mean += dy[at + i] * w[i] * normalized / n;
    }
    for (size_t i = 0; i < channels; ++i) {
      const double normalized = (x[at + i] - mean) * rstd;
      out.dx[at + i] = rstd * (dy[at + i] * w[i] - g_mean - normalized * gx_mean) + dsum[at + i];
    }
  }
  return out;
}

struct Outputs {
  Tensor y, dx, dweight, dbias;
};

Outputs run(const Inputs& in, bool with_dsum = true) {
  const Context context = test_context();
  const int64_t rows = in.x.size(0);
  const Tensor mean = Tensor::empty({rows}), rstd = Tensor::empty({rows});
  const auto like = [](const Tensor& x) { return Tensor::empty(x.shape(), x.dtype()); };
  Outputs out{like(in.x), like(in.x), like(in.weight), like(in.weight)};
  kernels::layer_norm_forward(context, out.y, mean, rstd, in.x, in.weight, in.bias, epsilon);
  kernels::layer_norm_backward(context, out.dx, out.dweight, out.dbias, in.dy,
                               with_dsum ? in.dsum : Tensor{}, in.x, mean, rstd, in.weight);
  return out;
}

}  // namespace

TEST_CASE("layer_norm against float64", "[layer_norm]") {
  const auto [rows, channels] = GENERATE(table<int64_t, int64_t>(
      {{0, 4}, {1, 1}, {1, 7}, {5, 16}, {3, 33}, {17, 130}, {70, 128}, {600, 5}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Inputs in(rows, channels, dtype);
  const Reference expected = reference(in);
  const Outputs actual = run(in);
  REQUIRE(max_error(actual.y, expected.y) < tolerance(dtype, 1, 5e-6));
  REQUIRE(max_error(actual.dx, expected.dx) < tolerance(dtype, 1, 2e-5));
  REQUIRE(max_error(actual.dweight, expected.dweight) < tolerance(dtype, 1, 2e-5));
  REQUIRE(max_error(actual.dbias, expected.dbias) < tolerance(dtype, 1, 2e-5));
}

TEST_CASE("layer_norm of rows far from zero", "[layer_norm]") {
  Inputs in(4, 50);
  for (float& value : in.x.values<float>()) value += 1000;
  REQUIRE(max_error(run(in).y, reference(in).y) < 2e-3);  // near 1000, f32 values are 6e-5 apart
}

// The rounding errors of a sum of equal values do not cancel. On the CPU, the mean of such a row is
// corrected (row_statistics). On a GPU it is not: each thread adds up fewer values there.
TEST_CASE("layer_norm of rows of equal values far from zero", "[layer_norm][cpu]") {
  const auto [channels, value] = GENERATE(table<int64_t, float>(
      {{768, 123.4f}, {768, 1000.1f}, {1000, 1000.1f}, {4096, 123.4f}, {4096, 1000.1f}}));
  Inputs in(2, channels);
  for (float& element : in.x.values<float>()) element = value;
  const Reference expected = reference(in);
  const Outputs actual = run(in);
  REQUIRE(max_error(actual.y, expected.y) < 1e-5);
  REQUIRE(max_error(actual.dx, expected.dx) < 1e-3);
}

TEST_CASE("layer_norm_backward computes only the gradients that are wanted", "[layer_norm]") {
  const Inputs in(37, 19);
  const Context context = test_context();
  const Tensor mean = Tensor::empty({37}), rstd = Tensor::empty({37}), y = Tensor::empty({37, 19});
  kernels::layer_norm_forward(context, y, mean, rstd, in.x, in.weight, in.bias, epsilon);
  const Outputs all = run(in, false);
  const Tensor dx = Tensor::empty({37, 19}), dweight = Tensor::empty({19}),
               dbias = Tensor::empty({19}), none;
  const auto launch = [&](const Tensor& to_x, const Tensor& to_weight, const Tensor& to_bias) {
    kernels::layer_norm_backward(context, to_x, to_weight, to_bias, in.dy, none, in.x, mean, rstd,
                                 in.weight);
  };
  launch(dx, none, none);
  launch(none, dweight, none);
  launch(none, none, dbias);
  REQUIRE(same_bits(dx, all.dx));
  REQUIRE(same_bits(dweight, all.dweight));
  REQUIRE(same_bits(dbias, all.dbias));
}

TEST_CASE("layer_norm's gradient", "[layer_norm]") {
  const auto operation = [](const std::vector<Tensor>& in) {
    return ops::layer_norm(in[0], in[1], in[2]);
  };
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const auto check = [&](const Shape& shape) {
    const Inputs in(1, shape[-1]);
    return check_gradient(operation, {random_tensor(shape, 6, -2, 2), in.weight, in.bias}, options);
  };
  REQUIRE(check({2, 3, 9}));
  REQUIRE(check({1, 20}));
  REQUIRE(check({17}));
  REQUIRE(check({3, 1}));
}

TEST_CASE("layer_norm's bits depend neither on threads nor on alignment", "[layer_norm]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Inputs in(600, 130, dtype);
  REQUIRE(same_bits_for_any_threads([&] {
    const Outputs out = run(in);
    return std::vector{out.y, out.dx, out.dweight, out.dbias};
  }));
  // The bits must be equal if all inputs begin one element after an aligned address.
  const auto moved = [](const Tensor& tensor) {
    const Tensor room = Tensor::empty({tensor.elements() + 1}, tensor.dtype());
    const Tensor result = room.flat(1, tensor.elements() + 1).view(tensor.shape());
    kernels::copy(test_context(), result, tensor);
    return result;
  };
  Inputs other = in;
  for (Tensor* tensor : {&other.x, &other.weight, &other.bias, &other.dy, &other.dsum}) {
    *tensor = moved(*tensor);
  }
  const Outputs expected = run(in), actual = run(other);
  REQUIRE(same_bits(actual.y, expected.y));
  REQUIRE(same_bits(actual.dx, expected.dx));
  REQUIRE(same_bits(actual.dweight, expected.dweight));
  REQUIRE(same_bits(actual.dbias, expected.dbias));
}

TEST_CASE("layer_norm's result for a row does not depend on the other rows", "[layer_norm]") {
  const Inputs in(40, 70, GENERATE(from_range(float_dtypes())));
  const Tensor all = ops::layer_norm(in.x, in.weight, in.bias);
  const Tensor few = ops::layer_norm(in.x.rows(7, 12), in.weight, in.bias);
  REQUIRE(same_bits(few, all.rows(7, 12)));
}

TEST_CASE("layer_norm refuses invalid arguments", "[layer_norm]") {
  const Inputs in(2, 8);
  REQUIRE_THROWS_WITH(ops::layer_norm(in.x, Tensor::full({4}, 1), in.bias),
                      "layer_norm: weight has shape [4], expected [8]");
  REQUIRE_THROWS_WITH(ops::layer_norm(in.x, in.weight, Tensor::full({2, 4}, 1)),
                      "layer_norm: bias has shape [2, 4], expected [8]");
  REQUIRE_THROWS_WITH(ops::layer_norm(Tensor::full({}, 1), in.weight, in.bias),
                      "layer_norm: x is a scalar, expected (..., C)");
}
