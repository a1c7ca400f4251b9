// Generates text with a GPT:
//   generate model.safetensors --prompt "ROMEO:" --tokens 200
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/generate_options.h"
#include "core/context.h"
#include "core/error.h"
#include "dist/device_choice.h"
#include "models/gpt/gpt_sizes.h"
#include "models/gpt/gpt_weights.h"
#include "train/sample.h"

namespace tessera::apps {
namespace {

// Returns a text such as ", because h.0.ln_1.weight is not finite", which names the first parameter
// that is not finite. Returns an empty text if all parameters are finite.
std::string not_finite(const models::Gpt& model) {
  for (const nn::NamedParameter& named : model.named_parameters()) {
    const Tensor here = named.parameter.tensor().to_host();
    const bool finite =
        std::ranges::all_of(here.values<float>(), [](float value) { return std::isfinite(value); });
    if (!finite) return ", because " + named.name + " is not finite";
  }
  return "";
}

void generate(const GenerateOptions& options) {
  dist::choose_device(options.device);
  check_not_a_checkpoint(options.model);
  const std::string weights = models::gpt_weights_path(options.model);
  const models::GptConfig config = models::read_gpt_config_of(weights);
  const bool bytes = config.vocab == 256;
  const std::vector<int32_t> prompt = prompt_tokens(options, config);
  train::check_prompt(prompt, config);
  set_thread_count(dist::threads_per_rank(options.threads, 1));

  models::Gpt model(config);
  models::GptWeights(weights, model).load();
  const auto print = [bytes](int32_t token) {
    const std::string text = train::token_text(token, bytes);
    std::fwrite(text.data(), 1, text.size(), stdout);
    check_output();
  };
  if (options.prompt) fmt::print("{}", *options.prompt);
  for (const int32_t token : options.prompt_tokens) print(token);
  try {
    train::sample(model, prompt, options.sample, print);
  } catch (const train::NanLogits&) {
    fail("{}: the model's logits are not numbers{}", weights, not_finite(model));
  }
  fmt::print("\n");
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  return apps::run_alone([&] {
    const auto [options, help] = apps::parse_generate_command_line(argc, argv);
    if (help.empty()) {
      apps::generate(options);
    } else {
      fmt::print("{}", help);
    }
  });
}
