#include "apps/generate_options.h"

#include "core/error.h"
#include "tests/support/catch.h"

using namespace tessera;
using namespace tessera::apps;

namespace {

models::GptConfig tiny_config() {
  return {.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 11};
}

// Parses arguments as main does.
GenerateCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "generate");
  return parse_generate_command_line(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("generate reads its command line, and refuses invalid flags") {
  const auto parsed = parse({"m.safetensors", "--prompt-tokens", "1,2,3", "--top-k", "5"}).options;
  REQUIRE(parsed.model == "m.safetensors");
  REQUIRE(prompt_tokens(parsed, tiny_config()) == std::vector<int32_t>{1, 2, 3});
  models::GptConfig bytes = tiny_config();
  bytes.vocab = 256;
  const auto text = parse({"m.safetensors", "--prompt", "A\xff"}).options;
  REQUIRE(prompt_tokens(text, bytes) == std::vector<int32_t>{65, 255});
  REQUIRE_THROWS_WITH(
      prompt_tokens(text, tiny_config()),
      "--prompt needs a model with a vocabulary of 256, whose tokens are bytes, "
      "but the vocabulary is 11; use --prompt-tokens, with the bytes of the prompt if "
      "the model was trained on text");
  REQUIRE(prompt_tokens(parse({"m"}).options, bytes) == std::vector<int32_t>{10});
  REQUIRE_THAT(parse({"--help"}).help,
               Catch::Matchers::ContainsSubstring("longer prompt have no effect") &&
                   Catch::Matchers::ContainsSubstring("with a vocabulary of 256"));
  for (const std::vector<const char*>& bad :
       std::vector<std::vector<const char*>>{{},
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
