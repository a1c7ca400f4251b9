#include "apps/generate_options.h"

#include <cmath>

#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

constexpr int64_t byte_vocab = 256;

void check(const GenerateOptions& options) {
  if (options.model.empty()) fail_input("a file of weights is required: generate FILE.safetensors");
  const train::SampleOptions& sample = options.sample;
  if (options.prompt && !options.prompt_tokens.empty()) {
    fail_input("--prompt and --prompt-tokens are both given, expected one of them");
  }
  if (options.prompt && options.prompt->empty()) fail_input("--prompt is empty");
  if (sample.tokens < 0) fail_input("--tokens is {}, expected at least 0", sample.tokens);
  if (!(std::isfinite(sample.temperature) && sample.temperature >= 0)) {
    fail_input("--temperature is {}, expected at least 0", sample.temperature);
  }
  if (sample.top_k < 0) fail_input("--top-k is {}, expected at least 0", sample.top_k);
  if (options.threads < 0 || options.threads > 4096) {
    fail_input("--threads is {}, expected from 1 to 4096, or 0 for the default", options.threads);
  }
}

}  // namespace

GenerateCommandLine parse_generate_command_line(int argc, const char* const* argv) {
  GenerateCommandLine result;
  GenerateOptions& options = result.options;
  Flags app("Samples from a GPT that train_gpt or transformers saved", "generate");
  app.add_option("model,--model", options.model,
                 "Weights: FILE.safetensors, or model.safetensors in the folder DIR; config.json "
                 "beside them has the model's sizes");
  app.add_option("--prompt", options.prompt,
                 "Text to continue, for models with a vocabulary of 256, whose tokens are bytes "
                 "(default: a line break)");
  app.add_option("--prompt-tokens", options.prompt_tokens,
                 "Tokens to continue, such as 1,2,3 (default: the end-of-text token for GPT-2's "
                 "vocabulary, a line break for a vocabulary of 256, 0 for any other)")
      ->list(',');
  app.add_option("--tokens", options.sample.tokens, "How many tokens to generate")
      ->capture_default_str();
  app.add_option("--temperature", options.sample.temperature,
                 "Temperature of the sampling; 0: always choose the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", options.sample.top_k,
                 "Choose among the k likeliest tokens; 0: among all tokens")
      ->capture_default_str();
  int64_t seed = 0;
  app.add_option("--seed", seed, "Seed of the sampling; the same seed gives the same text")
      ->capture_default_str();
  add_device_option(app, options.device);
  app.add_option("--threads", options.threads,
                 "CPU threads; 0: OMP_NUM_THREADS, else all cores (default: 0)");
  app.add_examples(R"(
The model sees only the last tokens of the prompt and of the text so far, at most as many as its
context (n_positions in config.json). Earlier tokens of a longer prompt have no effect.
)");
  result.help = app.parse(argc, argv);
  if (!result.help.empty()) return result;
  if (seed < 0) fail_input("--seed is {}, expected at least 0", seed);
  options.sample.seed = static_cast<uint64_t>(seed);
  check(options);
  return result;
}

std::vector<int32_t> prompt_tokens(const GenerateOptions& options,
                                   const models::GptConfig& config) {
  if (!options.prompt_tokens.empty()) return options.prompt_tokens;
  if (!options.prompt) return {train::default_prompt(config, config.vocab == byte_vocab)};
  if (config.vocab != byte_vocab) {
    fail_input(
        "--prompt needs a model with a vocabulary of {}, whose tokens are bytes, but the "
        "vocabulary is {}; use --prompt-tokens, with the bytes of the prompt if the model "
        "was trained on text",
        byte_vocab, config.vocab);
  }
  std::vector<int32_t> tokens;
  for (const char c : *options.prompt) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

}  // namespace tessera::apps
