// Compares the layers' results with reference values, most of them computed in float64. Compares
// the layers' gradients with finite differences. Also tests error messages.
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/random.h"
#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/transformer_reference.h"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("Linear computes x W + b in both layouts of its weight") {
  const auto layout = GENERATE(WeightLayout::out_in, WeightLayout::in_out);
  const bool bias = GENERATE(true, false);
  const auto activation = GENERATE(Activation::none, Activation::gelu);
  Linear layer(5, 3, {.bias = bias, .layout = layout, .activation = activation});
  CHECK(layer.weight.shape() == (layout == WeightLayout::in_out ? Shape{5, 3} : Shape{3, 5}));
  CHECK(layer.bias.defined() == bias);
  CHECK(layer.parameter_count() == (bias ? 18 : 15));
  materialize(layer);
  randomize(layer, 1);
  const Tensor x = random_tensor({2, 4, 5}, 9);
  const Tensor y = layer(x);
  CHECK(y.shape() == Shape{2, 4, 3});
  Values expected =
      linear_reference(values_of(x), values_of(layer.weight),
                       bias ? values_of(layer.bias) : Values(), 5, layout == WeightLayout::out_in);
  if (activation == Activation::gelu) expected = gelu_reference(expected);
  CHECK(relative_error(y, expected) < 1e-6);
  CHECK(check_module_gradient(layer, x, [&layer](const Tensor& in) { return layer(in); }));
}

TEST_CASE("Linear takes any number of rows, even none") {
  Linear layer(2, 3);
  materialize(layer);
  CHECK(layer(random_tensor({2}, 1)).shape() == Shape{3});
  CHECK(layer(Tensor::zeros({0, 2})).shape() == Shape{0, 3});
  backward(ops::sum(layer(Tensor::zeros({0, 2}))));
  for (const float value : layer.weight.gradient().values<float>()) CHECK(value == 0);
  for (const float value : layer.bias.gradient().values<float>()) CHECK(value == 0);
  CHECK(Linear(1, 1).parameter_count() == 2);
}

TEST_CASE("Linear is initialised like torch.nn.Linear, or by a given initializer") {
  Linear standard(16, 4);
  CHECK(standard.weight.initializer().kind == Initializer::Kind::uniform);
  CHECK(standard.weight.initializer().value == 0.25f);
  CHECK(standard.bias.initializer().value == 0.25f);
  Linear own(16, 4, {.initializer = Initializer::normal(0.5f)});
  CHECK(own.weight.initializer().kind == Initializer::Kind::normal);
  CHECK(own.bias.initializer().kind == Initializer::Kind::constant);
  CHECK(own.bias.initializer().value == 0);
}

TEST_CASE("Embedding looks rows up") {
  Embedding layer(6, 4);
  materialize(layer, {}, 2);
  const Tensor tokens = Tensor::from<int32_t>({2, 3}, {5, 0, 3, 3, 3, 1});
  const Tensor y = layer(tokens);
  CHECK(y.shape() == Shape{2, 3, 4});
  const Values table = values_of(layer.weight);
  Values expected;
  for (const int32_t token : tokens.values<int32_t>()) {
    expected.insert(expected.end(), table.begin() + 4 * token, table.begin() + 4 * token + 4);
  }
  CHECK(values_of(y) == expected);
  backward(ops::sum(y));
  CHECK(values_of(layer.weight.gradient()) ==
        Values{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 3, 3, 3, 3, 0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(layer.weight.initializer().kind == Initializer::Kind::normal);
  CHECK(layer.weight.initializer().value == 1);
  CHECK_THROWS_WITH(layer(Tensor::from<int32_t>({1, 1}, {6})), ContainsSubstring("token 6"));
  CHECK_THROWS_WITH(layer(Tensor::from<int32_t>({1, 1}, {-1})), ContainsSubstring("token -1"));
}

TEST_CASE("LayerNorm normalises the last dimension") {
  LayerNorm layer(7);
  materialize(layer);
  CHECK(values_of(layer.weight) == Values(7, 1.0));
  CHECK(values_of(layer.bias) == Values(7, 0.0));
  randomize(layer, 3);
  const Tensor x = random_tensor({2, 3, 7}, 4, -2, 3);
  CHECK(relative_error(layer(x), layer_norm_reference(values_of(x), values_of(layer.weight),
                                                      values_of(layer.bias))) < 1e-6);
  CHECK(check_module_gradient(layer, x, [&layer](const Tensor& in) { return layer(in); }));

  LayerNorm wide(7, 2.0f);
  materialize(wide);
  CHECK(relative_error(wide(x), layer_norm_reference(values_of(x), Values(7, 1.0), Values(7, 0.0),
                                                     2.0)) < 1e-6);
}

TEST_CASE("LayerNorm adds a residual and normalises the sum") {
  LayerNorm layer(4);
  materialize(layer);
  randomize(layer, 5);
  const Tensor x = random_tensor({3, 4}, 6);
  const Tensor residual = random_tensor({3, 4}, 7);
  const auto [sum, normalized] = layer.add_and_norm(x, residual);
  const Values expected = sum_reference(values_of(x), values_of(residual));
  CHECK(relative_error(sum, expected) < 1e-6);
  CHECK(relative_error(normalized, layer_norm_reference(expected, values_of(layer.weight),
                                                        values_of(layer.bias))) < 1e-6);
  // Checks the gradient through the sum alone, through the normalized output alone, and through
  // both.
  for (const int used : {1, 2, 3}) {
    CHECK(check_module_gradient(layer, x, [&](const Tensor& in) {
      const auto both = layer.add_and_norm(in, residual);
      if (used == 1) return both.sum;
      if (used == 2) return both.normalized;
      return ops::mul(both.sum, both.normalized);
    }));
  }
}

TEST_CASE("Dropout zeroes values only in training, and scales the values it keeps") {
  const DropoutState before = std::exchange(dropout_state(), {.step = 0});
  Dropout layer(0.25f, 3);
  const Tensor x = Tensor::full({8, 1000}, 3);
  layer.eval();
  CHECK(layer(x).raw() == x.raw());
  layer.train();
  const Tensor y = layer(x);
  int64_t kept = 0;
  for (const float value : y.values<float>()) {
    if (value == 0) continue;
    CHECK(value == 4);
    ++kept;
  }
  CHECK(std::fabs(static_cast<double>(kept) / 8000 - 0.75) < 0.025);
  Dropout none(0, 3);
  CHECK(none(x).raw() == x.raw());
  Dropout other(0.25f, 4);
  CHECK_FALSE(same_bits(other(x), y));
  const Tensor p = as_parameter(random_tensor({2, 6}, 1));
  CHECK(check_gradient([&layer](const auto& in) { return layer(in[0]); }, {p}));
  dropout_state() = before;
}

TEST_CASE("Dropout in training is an error on a thread without a running step", "[threads]") {
  const DropoutState before = std::exchange(dropout_state(), {.seed = 1, .step = 0});
  Dropout layer(0.25f, 3);
  Dropout none(0, 3);
  const Tensor x = Tensor::full({2, 3}, 3);
  CHECK_NOTHROW(layer(x));
  std::string refused;
  std::thread([&] {
    try {
      (void)none(x);
      (void)layer(x);
    } catch (const Error& error) {
      refused = error.what();
    }
  }).join();
  CHECK_THAT(refused, ContainsSubstring("dropout: no step is running on this thread") &&
                          ContainsSubstring("or set dropout_state() = {.seed = ..., .step = ...") &&
                          ContainsSubstring("or call the model's eval()"));
  dropout_state() = {};
  CHECK_THROWS_WITH(layer(x), ContainsSubstring("dropout: no step is running"));
  layer.eval();
  CHECK(layer(x).raw() == x.raw());
  dropout_state() = before;
}

TEST_CASE("a sample's dropout does not depend on its position in the batch") {
  const DropoutState before = dropout_state();
  dropout_state() = {.seed = 3, .step = 5, .first_sample = 10};
  Dropout layer(0.5f, 1);
  const Tensor x = random_tensor({4, 3, 33}, 1);
  const Tensor together = layer(x);
  for (int64_t i = 0; i < 4; ++i) {
    dropout_state().first_sample = 10 + i;
    CHECK(same_bits(layer(x.rows(i, i + 1)), together.rows(i, i + 1)));
  }
  dropout_state() = {.seed = 3, .step = 6, .first_sample = 10};
  CHECK_FALSE(same_bits(layer(x), together));
  dropout_state() = {.seed = 4, .step = 5, .first_sample = 10};
  CHECK_FALSE(same_bits(layer(x), together));
  dropout_state() = before;
}

TEST_CASE("Gelu is the tanh form") {
  Gelu layer;
  CHECK(layer.parameter_count() == 0);
  const Tensor x = random_tensor({3, 5}, 1, -4, 4);
  CHECK(relative_error(layer(x), gelu_reference(values_of(x))) < 1e-6);
  CHECK(check_gradient([&layer](const auto& in) { return layer(in[0]); }, {x}));
}

TEST_CASE("layers with invalid options are errors") {
  CHECK_THROWS_WITH(Linear(0, 3), ContainsSubstring("Linear: 0 inputs and 3 outputs"));
  CHECK_THROWS_WITH(Linear(3, -1), ContainsSubstring("3 inputs and -1 outputs"));
  CHECK_THROWS_WITH(Embedding(0, 3), ContainsSubstring("Embedding: table [0, 3]"));
  CHECK_THROWS_WITH(LayerNorm(0), ContainsSubstring("LayerNorm: width 0"));
  CHECK_THROWS_WITH(Dropout(1.0f, 0), ContainsSubstring("Dropout: probability 1"));
  CHECK_THROWS_WITH(Dropout(-0.1f, 0), ContainsSubstring("expected in [0, 1)"));
  CHECK_THROWS_WITH(Dropout(NAN, 0), ContainsSubstring("expected in [0, 1)"));
}

TEST_CASE("a layer without memory, or with an input that does not fit, is an error") {
  Linear layer(3, 2);
  CHECK_THROWS_WITH(layer(Tensor::zeros({4, 3})), ContainsSubstring("no memory yet"));
  materialize(layer);
  CHECK_THROWS_WITH(layer(Tensor::zeros({4, 2})),
                    ContainsSubstring("x has shape [4, 2], expected [..., 3]"));
  LayerNorm norm(3);
  materialize(norm);
  CHECK_THROWS_WITH(norm(Tensor::zeros({4, 2})),
                    ContainsSubstring("weight has shape [3], expected [2]"));
}
