// Compares a GPT's logits, loss and gradients with references, and the presets' sizes with the
// published sizes. Also tests error messages, dropout, the hooks that report uses of parameters,
// and the memory that a training step leaves allocated.
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "models/gpt/gpt.h"
#include "tests/support/catch.h"
#include "tests/support/cross_entropy_reference.h"
#include "tests/support/transformer_reference.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;
using models::Gpt;
using models::GptConfig;

namespace {

constexpr GptConfig tiny{.layers = 2, .heads = 2, .width = 8, .context = 6, .vocab = 11};

Values logits_reference(const Gpt& model, const Tensor& tokens) {
  const GptConfig& config = model.config();
  const NamedValues p = parameter_values(model);
  const auto width = static_cast<size_t>(config.width);
  Values x(static_cast<size_t>(tokens.elements()) * width);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto token = static_cast<size_t>(tokens.values<int32_t>()[i / width]);
    const auto position = i / width % static_cast<size_t>(tokens.size(1));
    x[i] = p.at("wte.weight")[token * width + i % width] +
           p.at("wpe.weight")[position * width + i % width];
  }
  const AttentionSizes sizes{tokens.size(0), tokens.size(1), config.width, config.heads};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    x = block_reference(x, p, "h." + std::to_string(layer) + ".", sizes);
  }
  x = layer_norm_reference(x, p.at("ln_f.weight"), p.at("ln_f.bias"));
  return linear_reference(x, p.at("wte.weight"), {}, config.width, true);
}

int64_t parameter_count(const std::string& preset) {
  return Gpt(GptConfig::preset(preset)).parameter_count();
}

int64_t held(Category category) { return memory_ledger().current(category); }

/// Restores the dropout state at the end of a test.
struct DropoutStateRestorer {
  DropoutState before = dropout_state();
  ~DropoutStateRestorer() { dropout_state() = before; }
};

}  // namespace

TEST_CASE("presets have the published numbers of parameters, and cost nothing to build") {
  const int64_t before = memory_ledger().current_total();
  // These are the parameter counts of Hugging Face's models, whose output heads are tied to the
  // token tables.
  CHECK(parameter_count("gpt2") == 124'439'808);
  CHECK(parameter_count("gpt2-medium") == 354'823'168);
  CHECK(parameter_count("gpt2-large") == 774'030'080);
  CHECK(parameter_count("gpt2-xl") == 1'557'611'200);
  // A GPT has V C + T C + L (12 C^2 + 13 C) + 2 C parameters, with vocabulary V, context T, width C
  // and L layers.
  CHECK(parameter_count("nano") == 256 * 128 + 64 * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 256);
  CHECK(parameter_count("micro") == 256 * 384 + 256 * 384 + 6 * (12 * 384 * 384 + 13 * 384) + 768);
  CHECK(memory_ledger().current_total() == before);
  CHECK(GptConfig::preset_names().size() == 6);
  for (const auto& name : GptConfig::preset_names()) {
    CHECK_NOTHROW(GptConfig::preset(name).validate());
  }
}

TEST_CASE("parameters have Hugging Face's names, and the head is the token table") {
  const Gpt model(tiny);
  const auto list = model.named_parameters();
  REQUIRE(list.size() == 2 + 2 * 12 + 2);
  CHECK(list[0].name == "wte.weight");
  CHECK(list[0].shared);
  CHECK(list[0].parameter.shape() == Shape{11, 8});
  CHECK(list[1].name == "wpe.weight");
  CHECK(list[2].name == "h.0.ln_1.weight");
  CHECK(list[4].name == "h.0.attn.c_attn.weight");
  CHECK(list[4].parameter.shape() == Shape{8, 24});
  CHECK(list[25].name == "h.1.mlp.c_proj.bias");
  CHECK(list[27].name == "ln_f.bias");
  for (size_t i = 1; i < list.size(); ++i) CHECK_FALSE(list[i].shared);
}

TEST_CASE("logits and loss agree with float64") {
  Gpt model(tiny);
  materialize(model);
  randomize(model, 5);
  // Tests sequences as long as the context (6 tokens), and shorter sequences.
  for (const int64_t length : {6, 4, 1}) {
    const Tensor tokens = random_indices({3, length}, 1, tiny.vocab);
    const Tensor targets = random_indices({3, length}, 2, tiny.vocab);
    const Values expected = logits_reference(model, tokens);
    const Tensor logits = model.logits(tokens);
    CHECK(logits.shape() == Shape{3, length, 11});
    CHECK(relative_error(logits, expected) < 5e-6);
    const double loss = CrossEntropyReference(expected, targets, 1.0).loss;
    CHECK(model.loss(tokens, targets).item() == Catch::Approx(loss).epsilon(1e-6));
  }
}

TEST_CASE("gradients of the whole model agree with finite differences") {
  Gpt model({.layers = 1, .heads = 2, .width = 4, .context = 3, .vocab = 5});
  materialize(model);
  randomize(model, 6);
  const Tensor tokens = random_indices({2, 3}, 3, 5);
  const Tensor targets = random_indices({2, 3}, 4, 5);
  const auto result = check_module_gradient(
      model, Tensor::zeros({1}), [&](const Tensor&) { return model.loss(tokens, targets); },
      {.tolerance = 5e-3});
  CHECK(result);
}

TEST_CASE("a new model knows nothing: its loss is about ln(vocabulary)") {
  for (const int64_t vocab : {64, 1000}) {
    Gpt model({.layers = 3, .heads = 4, .width = 64, .context = 32, .vocab = vocab});
    materialize(model, default_device(), 1);
    const Tensor tokens = random_indices({4, 32}, 1, vocab);
    const Tensor targets = random_indices({4, 32}, 2, vocab);
    const NoGrad no_grad;
    const double loss = model.loss(tokens, targets).item();
    CHECK(std::fabs(loss - std::log(static_cast<double>(vocab))) < 0.1);
  }
}

TEST_CASE("invalid configurations are errors that say why") {
  const auto with = [](auto change) {
    GptConfig config = tiny;
    change(config);
    return config;
  };
  const auto message = [](const GptConfig& config) {
    try {
      Gpt model(config);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no InputError");
  };
  CHECK(message(with([](auto& c) { c.layers = 0; })) == "layers is 0, expected at least 1");
  CHECK(message(with([](auto& c) { c.heads = -2; })) == "heads is -2, expected at least 1");
  CHECK(message(with([](auto& c) { c.width = 0; })) == "width is 0, expected at least 1");
  CHECK(message(with([](auto& c) { c.context = 0; })) == "context is 0, expected at least 1");
  CHECK(message(with([](auto& c) { c.vocab = 0; })) == "vocab is 0, expected at least 1");
  CHECK(message(with([](auto& c) { c.heads = 3; })) == "width 8 is not divisible by heads 3");
  CHECK(message(with([](auto& c) { c.dropout = 1; })) == "dropout is 1, expected in [0, 1)");
  CHECK(message(with([](auto& c) { c.dropout = -0.5f; })) == "dropout is -0.5, expected in [0, 1)");
  CHECK(message(with([](auto& c) { c.dropout = NAN; })) == "dropout is nan, expected in [0, 1)");
  CHECK(message(with([](auto& c) { c.layers = int64_t{1} << 62; })) ==
        "layers is 4611686018427387904, expected at most 16384");
  CHECK(message(with([](auto& c) { c.epsilon = -1; })) ==
        "the norms' epsilon is -1, expected above 0 and at most 1");
  CHECK(message(with([](auto& c) { c.epsilon = NAN; })) ==
        "the norms' epsilon is nan, expected above 0 and at most 1");
  CHECK(message(with([](auto& c) { c.initializer_range = -0.02f; })) ==
        "initializer_range is -0.02, expected a finite number of at least 0");
  for (const float range : {NAN, INFINITY, -INFINITY}) {
    CHECK(message(with([range](auto& c) { c.initializer_range = range; }))
              .ends_with("expected a finite number of at least 0"));
  }
  CHECK(message({}) == "layers is 0, expected at least 1");
  CHECK_THROWS_AS(GptConfig::preset("gpt3"), InputError);
  CHECK_THROWS_WITH(GptConfig::preset("gpt3"),
                    ContainsSubstring("'gpt3' is unknown, expected one of nano, micro, gpt2,"));
}

TEST_CASE("inputs that do not fit are errors that name the shapes") {
  Gpt model(tiny);
  const auto tokens = [](const Shape& shape) { return random_indices(shape, 1, 11); };
  CHECK_THROWS_WITH(model.logits(tokens({2, 3})), ContainsSubstring("no memory yet"));
  materialize(model);
  CHECK_THROWS_WITH(
      model.logits(tokens({2, 7})),
      ContainsSubstring("tokens have shape [2, 7], expected [B, T] with T at most 6"));
  CHECK_THROWS_WITH(model.logits(tokens({3})), ContainsSubstring("tokens have shape [3]"));
  CHECK_THROWS_WITH(model.loss(tokens({2, 3}), tokens({2, 4})),
                    ContainsSubstring("targets have shape [2, 4], expected [2, 3]"));
  const Tensor beyond = Tensor::from<int32_t>({1, 2}, {3, 11});
  CHECK_THROWS_WITH(model.logits(beyond),
                    ContainsSubstring("token 11 at position 1 is outside the vocabulary of 11"));
  CHECK_THROWS_WITH(model.loss(tokens({1, 2}), beyond), ContainsSubstring("11"));
}

TEST_CASE("a later token changes no earlier logit") {
  Gpt model(tiny);
  materialize(model);
  randomize(model, 7);
  const Tensor tokens = random_indices({1, 6}, 1, 11);
  const Tensor before = model.logits(tokens);
  tokens.data<int32_t>()[4] = (tokens.data<int32_t>()[4] + 1) % 11;
  const Tensor after = model.logits(tokens);
  CHECK(same_bits(before.flat(0, 44), after.flat(0, 44)));
  CHECK_FALSE(same_bits(before.flat(44, 55), after.flat(44, 55)));
}

TEST_CASE("dropout is the same for a sample wherever it is in a batch") {
  const DropoutStateRestorer restorer;
  GptConfig config = tiny;
  config.dropout = 0.3f;
  Gpt model(config);
  materialize(model);
  randomize(model, 8);
  const Tensor tokens = random_indices({4, 6}, 1, 11);
  dropout_state() = {.seed = 1, .step = 2, .first_sample = 100};
  const Tensor together = model.logits(tokens);
  for (int64_t i = 0; i < 4; ++i) {
    dropout_state().first_sample = 100 + i;
    const Tensor alone = model.logits(tokens.rows(i, i + 1));
    CHECK(relative_error(alone, values_of(together.rows(i, i + 1))) < 1e-5);
  }
  dropout_state().first_sample = 99;
  CHECK(relative_error(model.logits(tokens), values_of(together)) > 0.05);
  dropout_state() = {.seed = 1, .step = 3, .first_sample = 100};
  CHECK(relative_error(model.logits(tokens), values_of(together)) > 0.05);

  // Equal rows get different dropout masks.
  const Tensor equal = Tensor::from<int32_t>({2, 2}, {5, 5, 5, 5});
  const Tensor rows = model.logits(equal);
  CHECK_FALSE(same_bits(rows.rows(0, 1), rows.rows(1, 2)));

  model.eval();
  CHECK(relative_error(model.logits(tokens), logits_reference(model, tokens)) < 5e-6);
}

TEST_CASE("a training step leaves nothing but gradients behind") {
  const DropoutStateRestorer restorer;
  dropout_state().step = 0;
  GptConfig config = tiny;
  config.dropout = 0.1f;
  Gpt model(config);
  materialize(model);
  const Tensor tokens = random_indices({3, 6}, 1, 11);
  const Tensor targets = random_indices({3, 6}, 2, 11);
  const int64_t activations = held(Category::activations);
  const int64_t workspace = held(Category::workspace);
  const int64_t gradients = held(Category::gradients);
  const int64_t parameters = held(Category::parameters);
  for (int step = 0; step < 3; ++step) {
    backward(model.loss(tokens, targets));
    CHECK(held(Category::activations) == activations);
    CHECK(held(Category::workspace) == workspace);
    CHECK(held(Category::gradients) - gradients == 4 * model.parameter_count());
  }
  {
    const NoGrad no_grad;
    model.logits(tokens);
  }
  model.loss(tokens, targets);  // without a backward after it
  CHECK(held(Category::activations) == activations);
  CHECK(held(Category::workspace) == workspace);
  CHECK(held(Category::parameters) == parameters);
}

TEST_CASE("next_logits are the last row of logits") {
  Gpt model(tiny);
  materialize(model);
  const NoGrad no_grad;
  const Tensor tokens = random_indices({1, 5}, 12, tiny.vocab);
  const Tensor next = model.next_logits(tokens);
  const Tensor logits = model.logits(tokens);
  const auto all = logits.values<float>();
  REQUIRE(next.shape() == Shape{1, tiny.vocab});
  for (int64_t v = 0; v < tiny.vocab; ++v) {
    CHECK(next.data<float>()[v] ==
          Catch::Approx(all[static_cast<size_t>(4 * tiny.vocab + v)]).margin(1e-6));
  }
  REQUIRE_THROWS_AS(model.next_logits(random_indices({2, 5}, 12, tiny.vocab)), Error);
}

TEST_CASE("without gradients no activation outlives its use") {
  const Tensor tokens = random_indices({3, 6}, 1, 11);
  const auto peak = [&tokens](int64_t layers) {
    GptConfig config = tiny;
    config.layers = layers;
    Gpt model(config);
    materialize(model);
    const NoGrad no_grad;
    const int64_t before = held(Category::activations);
    memory_ledger().reset_peaks();
    model.loss(tokens, tokens);
    return memory_ledger().peak(Category::activations) - before;
  };
  CHECK(peak(7) == peak(2));
}

TEST_CASE("a parameter's uses begin and end in pairs, and its gradient is complete once") {
  Gpt model(tiny);
  materialize(model);
  std::map<std::string, int> uses, ends, completions, buffers;
  for (const auto& named : model.named_parameters()) {
    Leaf& leaf = named.parameter.leaf();
    const std::string name = named.name;
    leaf.about_to_be_used = [&uses, name] { ++uses[name]; };
    leaf.no_longer_used = [&ends, name] { ++ends[name]; };
    leaf.gradient_complete = [&completions, name] { ++completions[name]; };
    leaf.gradient_buffer = [&buffers, name, shape = named.parameter.shape()] {
      ++buffers[name];
      return Tensor::empty(shape, DType::f32, default_device(), Category::gradients);
    };
  }
  const Tensor tokens = random_indices({2, 5}, 1, 11);
  const Tensor loss = model.loss(tokens, tokens);
  CHECK(uses == ends);
  CHECK(uses.size() == model.named_parameters().size());
  for (const auto& [name, count] : uses) CHECK(count == (name == "wte.weight" ? 2 : 1));
  uses.clear();
  ends.clear();
  backward(loss);
  CHECK(uses == ends);
  for (const auto& [name, count] : uses) {
    // Backward reads:
    //   a linear's weight once;
    //   a norm's weight once, for the gradient of the norm's input;
    //   weight and bias of every norm but ln_f once more, because these norms are computed again.
    const bool norm = name.find("ln_") != std::string::npos;
    const bool weight = name.ends_with("weight");
    const bool again = norm && name.find("ln_f") == std::string::npos;
    CHECK(count == (norm ? int{again} + int{weight} : 1));
  }
  CHECK(uses.count("wte.weight") == 1);  // only the output head's backward reads the table
  CHECK(uses.count("wpe.weight") == 0);
  CHECK(uses.count("h.0.mlp.c_fc.bias") == 0);
  CHECK(completions.size() == model.named_parameters().size());
  for (const auto& [name, count] : completions) CHECK(count == 1);
  CHECK(buffers == completions);
}
