#include "train/sample.h"

#include <cmath>

#include "core/cpu/onednn.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::train;
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
  // Logits that are far apart and far from zero must not overflow.
  REQUIRE(choose_token(std::vector<float>{-3e38f, 3e38f}, {.temperature = 0.1f}, 0) == 1);
  REQUIRE_THROWS_AS(choose_token(std::vector<float>{0, NAN}, {}, 0), NanLogits);
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
  // The model sees only the last four tokens of the prompt.
  REQUIRE(text_of(model, options, {9, 9, 9, 1, 2, 3, 4}) == text_of(model, options, {1, 2, 3, 4}));
  REQUIRE(model.training());
}

TEST_CASE("after an exception while text is generated, the model is in the mode of before") {
  models::Gpt model(tiny_config());
  nn::materialize(model);
  const auto fails = [](int32_t) { fail("the text cannot be written"); };
  REQUIRE_THROWS_AS(sample(model, {1, 2}, {}, fails), Error);
  REQUIRE(model.training());
}

TEST_CASE("prompts that the model cannot read are refused") {
  models::Gpt model(tiny_config());
  nn::materialize(model);
  REQUIRE_THROWS_AS(text_of(model, {}, {}), InputError);
  REQUIRE_THAT(test::message_of<InputError>([&] {
                 text_of(model, {}, {3, 11});
               }),
               ContainsSubstring("token 11 is beyond the model's vocabulary of 11"));
  REQUIRE_THROWS_AS(text_of(model, {}, {-1}), InputError);
}

TEST_CASE("a model in 16 bits generates text, too") {
  models::Gpt model(tiny_config());
  model.to(DType::bf16);
  nn::materialize(model, {}, 3);
  REQUIRE(text_of(model, {.tokens = 5}).size() == 5);
}

TEST_CASE("sampling over many lengths keeps a bounded number of products", "[cpu]") {
  models::GptConfig config = tiny_config();
  config.context = 160;
  models::Gpt model(config);
  nn::materialize(model);
  text_of(model, {.tokens = 160});
  REQUIRE(cpu::onednn::kept_products() == cpu::onednn::most_primitives);
}
