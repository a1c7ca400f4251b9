#include "models/gpt/gpt_metadata.h"

#include <charconv>
#include <cmath>

#include "models/gpt/gpt_config_file.h"
#include "nn/safetensors.h"

namespace tessera::models {
namespace {

constexpr const char* type_key = "model_type";
constexpr const char* gpt_type = "gpt2";

template <class T>
T number(const std::string& where, const std::map<std::string, std::string>& metadata,
         const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail_input("{}: the description of the GPT has no {}", where, key);
  const std::string& text = found->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool finite = std::isfinite(static_cast<double>(value));
  if (error != std::errc() || end != text.data() + text.size() || !finite) {
    fail_input("{}: {} of the GPT is {}, expected a number", where, key, nn::printable(text));
  }
  return value;
}

}  // namespace

std::map<std::string, std::string> gpt_metadata(const GptConfig& config) {
  return {{"format", "pt"},
          {type_key, gpt_type},
          {"n_layer", fmt::format("{}", config.layers)},
          {"n_head", fmt::format("{}", config.heads)},
          {"n_embd", fmt::format("{}", config.width)},
          {"n_positions", fmt::format("{}", config.context)},
          {"vocab_size", fmt::format("{}", config.vocab)},
          {"dropout", fmt::format("{}", config.dropout)},
          {"layer_norm_epsilon", fmt::format("{}", config.epsilon)},
          {"initializer_range", fmt::format("{}", config.initializer_range)}};
}

bool describes_gpt(const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(type_key);
  return found != metadata.end() && found->second == gpt_type;
}

GptConfig parse_gpt_metadata(const std::string& where,
                             const std::map<std::string, std::string>& metadata) {
  const auto size = [&](const char* key) { return number<int64_t>(where, metadata, key); };
  const auto real = [&](const char* key) { return number<float>(where, metadata, key); };
  const GptConfig config{.layers = size("n_layer"),
                         .heads = size("n_head"),
                         .width = size("n_embd"),
                         .context = size("n_positions"),
                         .vocab = size("vocab_size"),
                         .dropout = real("dropout"),
                         .epsilon = real("layer_norm_epsilon"),
                         .initializer_range = real("initializer_range")};
  try {
    config.validate(gpt_config_names);
  } catch (const InputError& error) {
    fail_input("{}: {}", where, error.what());
  }
  return config;
}

}  // namespace tessera::models
