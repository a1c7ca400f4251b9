#include "apps/support/sample.h"

#include <cmath>

#include "apps/support/generate_options.h"
#include "apps/support/non_finite.h"
#include "core/ops/fill.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::apps;
using Catch::Matchers::ContainsSubstring;

namespace {

models::GptConfig tiny_config() {
  return {.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 11};
}

std::vector<int32_t> text_of(models::Gpt& model, const SampleOptions& options,
                             const std::vector<int32_t>& prompt = {1, 2}) {
  std::vector<int32_t> text;
  sample(model, prompt, options, [&](int32_t token) { text.push_back(token); });
  return text;
}

// nullptr-terminated arguments as main gets them.
GenerateCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "generate");
  return parse_generate_command_line(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("temperature 0 takes the likeliest token, the first of equals") {
  const std::vector<float> logits = {0, 3, -1, 3};
  REQUIRE(choose_token(logits, {.temperature = 0}, 0) == 1);
  REQUIRE(choose_token(logits, {.temperature = 5, .top_k = 1}, 0) == 1);
}

TEST_CASE("tokens are drawn as often as softmax says, among the k likeliest") {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  std::vector<int> count(3);
  std::vector<int> count_of_two(3);
  for (int64_t position = 0; position < 8000; ++position) {
    ++count[static_cast<size_t>(choose_token(logits, {.temperature = 1}, position))];
    ++count_of_two[static_cast<size_t>(
        choose_token(logits, {.temperature = 1, .top_k = 2}, position))];
  }
  REQUIRE(std::abs(count[0] - 1000) < 120);
  REQUIRE(std::abs(count[1] - 2000) < 160);
  REQUIRE(std::abs(count[2] - 5000) < 180);
  REQUIRE(count_of_two[0] == 0);
  REQUIRE(std::abs(count_of_two[1] - 2286) < 180);
  // Far apart and far from zero: no overflow.
  REQUIRE(choose_token(std::vector<float>{-3e38f, 3e38f}, {.temperature = 0.1f}, 0) == 1);
  REQUIRE_THROWS_AS(choose_token(std::vector<float>{0, NAN}, {}, 0), Error);
}

TEST_CASE("the same seed gives the same text, and the window slides past the context") {
  models::Gpt model(tiny_config());
  nn::materialize(model, {}, 3);
  const SampleOptions options{.tokens = 20, .temperature = 1, .seed = 1};
  const auto text = text_of(model, options);
  REQUIRE(text.size() == 20);
  REQUIRE(text_of(model, options) == text);
  SampleOptions other = options;
  other.seed = 2;
  REQUIRE(text_of(model, other) != text);
  // Only the last four tokens of the prompt are seen.
  REQUIRE(text_of(model, options, {9, 9, 9, 1, 2, 3, 4}) == text_of(model, options, {1, 2, 3, 4}));
  REQUIRE(model.training());
}

TEST_CASE("prompts that the model cannot read are refused") {
  models::Gpt model(tiny_config());
  nn::materialize(model);
  REQUIRE_THROWS_AS(text_of(model, {}, {}), InputError);
  REQUIRE_THAT(test::message_of<InputError>([&] { text_of(model, {}, {3, 11}); }),
               ContainsSubstring("token 11 is beyond the model's vocabulary of 11"));
  REQUIRE_THROWS_AS(text_of(model, {}, {-1}), InputError);
}

TEST_CASE("generate's command line") {
  const auto parsed = parse({"m.safetensors", "--prompt-tokens", "1,2,3", "--top-k", "5"}).options;
  REQUIRE(parsed.model == "m.safetensors");
  REQUIRE(prompt_tokens(parsed, tiny_config()) == std::vector<int32_t>{1, 2, 3});
  models::GptConfig bytes = tiny_config();
  bytes.vocab = 256;
  const auto text = parse({"m.safetensors", "--prompt", "A\xff"}).options;
  REQUIRE(prompt_tokens(text, bytes) == std::vector<int32_t>{65, 255});
  REQUIRE_THROWS_AS(prompt_tokens(text, tiny_config()), InputError);
  REQUIRE(prompt_tokens(parse({"m"}).options, bytes) == std::vector<int32_t>{10});
  REQUIRE_FALSE(parse({"--help"}).help.empty());
  for (const std::vector<const char*>& bad : std::vector<std::vector<const char*>>{
           {},
           {"m", "--foo"},
           {"m", "--tokens", "-1"},
           {"m", "--temperature", "-0.5"},
           {"m", "--temperature", "nan"},
           {"m", "--top-k", "-1"},
           {"m", "--seed", "-1"},
           {"m", "--prompt", ""},
           {"m", "--prompt-tokens", "1,x"},
           {"m", "--prompt", "a", "--prompt-tokens", "1"}}) {
    REQUIRE_THROWS_AS(parse(bad), InputError);
  }
}

TEST_CASE("the first operation whose output is not finite is named with its parameter") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  models::Gpt model(tiny_config());
  model.to(dtype);
  nn::materialize(model);
  const Tensor tokens = Tensor::from<int32_t>({1, 3}, {1, 2, 3});
  const auto forward = [&] { model.loss(tokens, tokens); };
  REQUIRE(first_non_finite(forward) == "none of the operations when they were run again");
  for (const auto& named : model.named_parameters()) {
    if (named.name != "h.1.mlp.c_fc.weight") continue;
    visit_float(dtype, "test", [&]<class T>() {
      named.parameter.tensor().values<T>()[5] = T(NAN);
    });
  }
  REQUIRE(first_non_finite(forward) ==
          "linear with h.1.mlp.c_fc.weight, which is not finite itself");
  // Nothing is left behind that watches.
  forward();
}

TEST_CASE("a value that overflows on the way is found where it overflows") {
  const auto [dtype, large] = GENERATE(std::pair(DType::f32, 3e38f), std::pair(DType::f16, 6e4f));
  models::Gpt model(tiny_config());
  model.to(dtype);
  nn::materialize(model);
  const Tensor tokens = Tensor::from<int32_t>({1, 3}, {1, 2, 3});
  for (const auto& named : model.named_parameters()) {
    const bool weight = named.name == "h.0.attn.c_proj.weight";
    if (!weight && named.name != "h.0.attn.c_attn.bias") continue;
    kernels::fill(current_context({}), named.parameter.tensor(), weight ? large : 100);
  }
  REQUIRE(first_non_finite([&] { model.loss(tokens, tokens); }) ==
          "linear with h.0.attn.c_proj.weight");
}

TEST_CASE("a model in 16 bits gives text too") {
  models::Gpt model(tiny_config());
  model.to(DType::bf16);
  nn::materialize(model, {}, 3);
  REQUIRE(text_of(model, {.tokens = 5}).size() == 5);
}
