// Compares attention, MLP and transformer block with float64, and their gradients with finite
// differences.
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "nn/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/transformer_reference.h"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr TransformerOptions small{.width = 6, .heads = 2};
constexpr AttentionSizes sizes{.batch = 2, .tokens = 3, .width = 6, .heads = 2};

Tensor input() { return random_tensor({2, 3, 6}, 40); }

/// The tolerance for compositions of operations, each of which rounds.
constexpr GradientCheckOptions composed{.tolerance = 3e-3};

}  // namespace

TEST_CASE("CausalSelfAttention attends only to the same and earlier tokens") {
  CausalSelfAttention layer(small);
  CHECK(layer.parameter_count() == 6 * 18 + 18 + 6 * 6 + 6);
  materialize(layer);
  randomize(layer, 10);
  const auto p = parameter_values(layer);
  const Tensor x = input();
  const Values qkv = linear_reference(values_of(x), p.at("c_attn.weight"), p.at("c_attn.bias"), 6);
  const Values expected = linear_reference(attention_reference(qkv, sizes), p.at("c_proj.weight"),
                                           p.at("c_proj.bias"), 6);
  const Tensor y = layer(x);
  CHECK(relative_error(y, expected) < 1e-6);
  CHECK(check_module_gradient(
      layer, x, [&](const Tensor& in) { return layer(in); }, composed));

  // Changing a later token must change no output before it.
  const Tensor changed = Tensor::from<float>(x.shape(), x.values<float>());
  for (int64_t i = 0; i < 6; ++i) changed.data<float>()[2 * 6 + i] += 1;
  const Tensor z = layer(changed);
  CHECK(same_bits(z.rows(0, 1).flat(0, 12), y.rows(0, 1).flat(0, 12)));
  CHECK_FALSE(same_bits(z.rows(0, 1).flat(12, 18), y.rows(0, 1).flat(12, 18)));
  CHECK(same_bits(z.rows(1, 2), y.rows(1, 2)));
}

TEST_CASE("Mlp widens four times, with GELU") {
  Mlp layer(small);
  CHECK(layer.parameter_count() == 6 * 24 + 24 + 24 * 6 + 6);
  materialize(layer);
  randomize(layer, 20);
  const auto p = parameter_values(layer);
  const Tensor x = input();
  const Values hidden =
      gelu_reference(linear_reference(values_of(x), p.at("c_fc.weight"), p.at("c_fc.bias"), 6));
  CHECK(relative_error(layer(x), linear_reference(hidden, p.at("c_proj.weight"),
                                                  p.at("c_proj.bias"), 24)) < 1e-6);
  CHECK(check_module_gradient(
      layer, x, [&](const Tensor& in) { return layer(in); }, composed));
}

TEST_CASE("TransformerBlock is a pre-norm block") {
  TransformerBlock block(small);
  std::vector<std::string> names;
  for (const auto& named : block.named_parameters()) names.push_back(named.name);
  CHECK(names == std::vector<std::string>{
                     "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
                     "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                     "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"});
  materialize(block);
  randomize(block, 30);
  const Tensor x = input();
  CHECK(relative_error(block.forward(x),
                       block_reference(values_of(x), parameter_values(block), "", sizes)) < 2e-6);
  CHECK(check_module_gradient(
      block, x, [&](const Tensor& in) { return block.forward(in); }, composed));
}

TEST_CASE("blocks in a row share one residual stream") {
  TransformerBlock first(small);
  TransformerBlock second(small);
  LayerNorm norm(6);
  materialize(first, {}, 1);
  materialize(second, {}, 2);
  materialize(norm);
  randomize(first, 50);
  randomize(second, 70);
  randomize(norm, 90);
  const Tensor x = input();
  const auto stream = second.forward(first.forward(ResidualStream{x, {}}));
  const auto [sum, normalized] = normalize(norm, stream);
  const Values middle = block_reference(values_of(x), parameter_values(first), "", sizes);
  const Values expected = block_reference(middle, parameter_values(second), "", sizes);
  CHECK(relative_error(sum, expected) < 3e-6);
  CHECK(relative_error(normalized, layer_norm_reference(expected, values_of(norm.weight),
                                                        values_of(norm.bias))) < 3e-6);
  // At the start of a residual stream there is no update to add, so the sum is x itself.
  const auto start = normalize(norm, ResidualStream{x, {}});
  CHECK(start.sum.raw() == x.raw());
  CHECK(same_bits(start.normalized, norm(x)));
}

TEST_CASE("projections into the residual stream have a smaller initial deviation") {
  TransformerOptions options = small;
  options.residual_deviation = 0.005f;
  TransformerBlock block(options);
  for (const auto& named : block.named_parameters()) {
    const std::string& name = named.name;
    const Initializer& initializer = named.parameter.initializer();
    if (name.ends_with("bias")) {
      CHECK(initializer.kind == Initializer::Kind::constant);
      CHECK(initializer.value == 0);
    } else if (name.starts_with("ln_")) {
      CHECK(initializer.value == 1);
    } else {
      CHECK(initializer.kind == Initializer::Kind::normal);
      CHECK(initializer.value == (name.find("c_proj") != std::string::npos ? 0.005f : 0.02f));
    }
  }
}

TEST_CASE("a block applies dropout after each sub-layer, only in training, by its index") {
  TransformerOptions options = small;
  const DropoutState before = std::exchange(dropout_state(), {.step = 0});
  options.dropout = 0.5f;
  TransformerBlock zero(options);
  options.index = 1;
  TransformerBlock one(options);
  materialize(zero);
  materialize(one);
  randomize(zero, 30);
  randomize(one, 30);
  const Tensor x = input();
  CHECK_FALSE(same_bits(zero.forward(x), one.forward(x)));
  const auto stream = zero.forward(ResidualStream{x, {}});
  const auto zeros_in = [](const Tensor& t) {
    const auto values = t.values<float>();
    return std::count(values.begin(), values.end(), 0.0f);
  };
  CHECK(zeros_in(stream.update) > 6);
  CHECK(check_module_gradient(
      zero, x, [&](const Tensor& in) { return zero.forward(in); }, composed));
  zero.eval();
  one.eval();
  CHECK(same_bits(zero.forward(x), one.forward(x)));
  CHECK(relative_error(zero.forward(x),
                       block_reference(values_of(x), parameter_values(zero), "", sizes)) < 2e-6);
  dropout_state() = before;
}

TEST_CASE("heads that do not divide the width are an error") {
  CHECK_THROWS_WITH(CausalSelfAttention({.width = 6, .heads = 4}),
                    ContainsSubstring("width 6 is not divisible by 4 heads"));
  CHECK_THROWS_AS(TransformerBlock({.width = 6, .heads = 0}), Error);
  CHECK_THROWS_AS(TransformerBlock({.width = 0, .heads = 1}), Error);
}
