#include "core/check_gradient.h"
#include "core/ops/matmul.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t rows, in, out;
};

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
  const double step = 1e-5;
  return (gelu(x + step) - gelu(x - step)) / (2 * step);
}

TEST_CASE("linear and its gradients equal float64") {
  const auto [rows, in, out] =
      GENERATE(Case{1, 1, 1}, Case{7, 3, 5}, Case{33, 65, 129}, Case{200, 16, 1}, Case{2, 1, 300});
  const auto layout = GENERATE(WeightLayout::in_out, WeightLayout::out_in);
  const auto activation = GENERATE(Activation::none, Activation::gelu);
  const bool with_bias = GENERATE(true, false);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool in_out = layout == WeightLayout::in_out;
  const Shape weight_shape = in_out ? Shape{in, out} : Shape{out, in};
  const Tensor x = as_parameter(random_tensor_of(dtype, {1, rows, in}, 1, -2, 2));
  const Tensor weight = as_parameter(random_tensor_of(dtype, weight_shape, 2));
  const Tensor bias = with_bias ? as_parameter(random_tensor_of(dtype, {out}, 3)) : Tensor();
  const Tensor y = ops::linear(x, weight, bias, {.layout = layout, .activation = activation});
  REQUIRE(y.shape() == Shape{1, rows, out});
  const Tensor dy = random_tensor_of(dtype, y.shape(), 4);
  backward_from(y, dy);

  const bool active = activation == Activation::gelu;
  const Values bias_values = with_bias ? values_of(bias) : Values(), dy_values = values_of(dy);
  Values pre = product(values_of(x), values_of(weight), rows, out, in, false, !in_out);
  Values expected(pre.size()), g(pre.size()), dbias(static_cast<size_t>(out), 0.0);
  for (size_t i = 0; i < pre.size(); ++i) {
    const size_t column = i % static_cast<size_t>(out);
    if (with_bias) pre[i] += bias_values[column];
    expected[i] = active ? gelu(pre[i]) : pre[i];
    g[i] = dy_values[i] * (active ? gelu_slope(pre[i]) : 1.0);
    dbias[column] += g[i];
  }
  // The operation rounds each result once. With an activation, it also rounds the activation's
  // input, and the gradient g of this input. On a GPU, cuBLASLt has kernels for unusual sizes that
  // also round the product before they add the bias.
  const double bound = tolerance(dtype, active ? 3 : 1);
  const bool twice = with_bias && on_real_gpu() && !active;
  CAPTURE(rows, in, out, in_out, active, with_bias, dtype_name(dtype));
  CHECK(relative_error(y, expected) < (twice ? tolerance(dtype, 2) : bound));
  CHECK(relative_error(x.leaf()->gradient,
                       product(g, values_of(weight), rows, in, out, false, in_out)) < bound);
  const Values dweight = in_out ? product(values_of(x), g, in, out, rows, true, false)
                                : product(g, values_of(x), out, in, rows, true, false);
  CHECK(relative_error(weight.leaf()->gradient, dweight) < bound);
  if (with_bias) CHECK(relative_error(bias.leaf()->gradient, dbias) < bound);
}

TEST_CASE("linear passes the check of its gradients") {
  const auto activation = GENERATE(Activation::none, Activation::gelu);
  CHECK(check_gradient(
      [&](const auto& in) { return ops::linear(in[0], in[1], in[2], {.activation = activation}); },
      {random_tensor({2, 3, 4}, 1), random_tensor({5, 4}, 2), random_tensor({5}, 3)}));
}

TEST_CASE("linear's weight gradient is rounded once, into the buffer of the parameter") {
  const DType dtype = GENERATE(from_range(half_dtypes()));
  const int64_t rows = 3000, in = 33, out = 40;
  const Tensor x = random_tensor_of(dtype, {rows, in}, 1);
  const Tensor dy = random_tensor_of(dtype, {rows, out}, 2);
  const Tensor buffer = Tensor::full({in, out}, NAN);
  const Tensor narrow_buffer = rounded_to(dtype, buffer);
  const Tensor weight = as_parameter(random_tensor_of(dtype, {in, out}, 3));
  weight.leaf()->gradient_buffer = [&] { return narrow_buffer; };
  backward_from(ops::linear(x, weight, {}, {.layout = WeightLayout::in_out}), dy);
  kernels::matmul(test_context(), buffer, x, dy, MatmulArgs{.transpose_a = true});
  CHECK(same_bits(narrow_buffer, rounded_to(dtype, buffer)));
}

TEST_CASE("linear computes only the gradients wanted, and announces the parameters it reads") {
  const bool x_trains = GENERATE(false, true), weight_trains = GENERATE(false, true);
  const auto activation = GENERATE(Activation::none, Activation::gelu);
  GatheredParameter x(random_tensor({4, 3}, 1)), weight(random_tensor({5, 3}, 2)),
      bias(random_tensor({5}, 3));
  x.tensor.leaf()->trainable = x_trains;
  weight.tensor.leaf()->trainable = weight_trains;
  const Tensor y =
      ops::linear(x.tensor, weight.tensor, bias.tensor, {.activation = activation});
  CHECK(x.uses == 1);
  CHECK(weight.uses == 1);
  CHECK(bias.uses == 1);
  backward_from(y, random_tensor({4, 5}, 4));
  CHECK(x.uses == (weight_trains ? 2 : 1));
  CHECK(weight.uses == (x_trains ? 2 : 1));
  CHECK(bias.uses == 1);
  CHECK(x.gradient().defined() == x_trains);
  CHECK(weight.gradient().defined() == weight_trains);
  CHECK(!ops::linear(random_tensor({4, 3}, 1), random_tensor({5, 3}, 2), {}).requires_grad());
}

TEST_CASE("linear without a backward allocates no pre-activation") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {64, 32}, 1, -2, 2);
  const Tensor bias = random_tensor_of(dtype, {128}, 3);
  Tensor weight = random_tensor_of(dtype, {128, 32}, 2);
  const auto compute = [&] {
    memory_ledger().reset_peaks();
    const int64_t before = memory_ledger().current(Category::activations);
    const Tensor y = ops::linear(x, weight, bias, {.activation = Activation::gelu});
    return std::pair{y, memory_ledger().peak(Category::activations) - before};
  };
  const auto [frozen, bytes] = compute();
  CHECK(bytes == 64 * 128 * dtype_size(dtype));
  weight = as_parameter(weight);
  const auto [recorded, recorded_bytes] = compute();
  CHECK(recorded_bytes == 2 * bytes);
  CHECK(same_bits(frozen, recorded));
  const NoGrad no_grad;
  CHECK(compute().second == bytes);
}

TEST_CASE("linear without rows has zero weight gradients") {
  const Tensor x = as_parameter(Tensor::empty({0, 3}));
  const Tensor weight = as_parameter(random_tensor({3, 2}, 1));
  const Tensor bias = as_parameter(random_tensor({2}, 2));
  const Tensor y = ops::linear(x, weight, bias,
                               {.layout = WeightLayout::in_out, .activation = Activation::gelu});
  backward_from(y, Tensor::empty({0, 2}));
  CHECK(values_of(weight.leaf()->gradient) == Values(6, 0.0));
  CHECK(values_of(bias.leaf()->gradient) == Values(2, 0.0));
}

TEST_CASE("a bias gradient has the same bits for every number of threads") {
  const ThreadCountRestorer restore;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {1000, 8}, 1);
  const Tensor dy = random_tensor_of(dtype, {1000, 700}, 2);
  Tensor first;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    const Tensor bias = as_parameter(random_tensor_of(dtype, {700}, 3));
    backward_from(ops::linear(x, random_tensor_of(dtype, {700, 8}, 4), bias), dy);
    if (!first.defined()) first = bias.leaf()->gradient;
    CHECK(same_bits(bias.leaf()->gradient, first));
  }
}

TEST_CASE("linear refuses shapes that do not fit, and names them") {
  using Catch::Matchers::ContainsSubstring;
  const Tensor x = random_tensor({4, 3}, 1);
  const Tensor weight = random_tensor({5, 3}, 1);
  CHECK_THROWS_WITH(ops::linear(x, random_tensor({3}, 1), {}),
                    ContainsSubstring("linear: weight has shape [3], expected [out, in]"));
  CHECK_THROWS_WITH(ops::linear(x, weight, {}, {.layout = WeightLayout::in_out}),
                    ContainsSubstring("linear: x has shape [4, 3], expected [..., 5]"));
  CHECK_THROWS_WITH(ops::linear(x, weight, random_tensor({3}, 1)),
                    ContainsSubstring("linear: bias has shape [3], expected [5]"));
  CHECK_THROWS_WITH(ops::linear(x, Tensor::empty({5, 3}, DType::i32), {}),
                    ContainsSubstring("linear: weight has dtype i32, expected f32"));
}

}  // namespace
}  // namespace tessera::test
