#include "models/gpt/gpt_config_file.h"

#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "core/text/input_file.h"
#include "core/text/json_line.h"
#include "core/text/json_read.h"

namespace tessera::models {
namespace {

using nlohmann::json;

constexpr JsonLimits limits{.bytes = int64_t{1} << 20};

int64_t size_of(const std::string& path, const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) fail_input("{}: it has no {}", path, key);
  return json_integer(fmt::format("{}: {}", path, key), *found);
}

// Reads the number `key` into `value`. If `key` is absent or null, `value` keeps its default.
void read_real(const std::string& path, const json& config, const char* key, float& value) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return;
  if (!found->is_number()) fail_input("{}: {} is not a number", path, key);
  const auto number = found->get<double>();
  value = static_cast<float>(number);
  // Errors after this one would show infinity or 0 instead of the file's number.
  if (!std::isfinite(value) || (value == 0 && number != 0)) {
    fail_input("{}: {} is {}, which is out of the range of fp32", path, key, json_excerpt(*found));
  }
}

// Refuses a setting that changes the model's computation, unless the setting is absent or has one
// of the `supported` values.
void check_setting(const std::string& path, const json& config, const char* key,
                   std::initializer_list<json> supported) {
  const auto found = config.find(key);
  if (found == config.end()) return;
  std::string list;
  for (const json& value : supported) {
    if (*found == value) return;
    list += (list.empty() ? "" : " or ") + value.dump();
  }
  fail_input("{}: {} is {}, but only {} is supported", path, key, json_excerpt(*found), list);
}

// Reads the sizes of a GPT from the parsed content of config.json at `config_path`. Throws as
// read_gpt_config does.
GptConfig config_of(const std::string& config_path, const json& config) {
  if (!config.is_object()) fail_input("{}: is not a JSON object", config_path);
  check_setting(config_path, config, "model_type", {"gpt2"});
  check_setting(config_path, config, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  check_setting(config_path, config, "tie_word_embeddings", {true});
  check_setting(config_path, config, "scale_attn_weights", {true});
  check_setting(config_path, config, "scale_attn_by_inverse_layer_idx", {false});
  check_setting(config_path, config, "add_cross_attention", {false});

  GptConfig sizes{.layers = size_of(config_path, config, "n_layer"),
                  .heads = size_of(config_path, config, "n_head"),
                  .width = size_of(config_path, config, "n_embd"),
                  .context = size_of(config_path, config, "n_positions"),
                  .vocab = size_of(config_path, config, "vocab_size")};
  read_real(config_path, config, "layer_norm_epsilon", sizes.epsilon);
  read_real(config_path, config, "initializer_range", sizes.initializer_range);
  try {
    sizes.validate(gpt_config_names);
  } catch (const InputError& error) {
    fail_input("{}: {}", config_path, error.what());
  }
  check_setting(config_path, config, "n_inner", {nullptr, 4 * sizes.width});
  return sizes;
}

}  // namespace

std::string config_path_beside(const std::string& path) {
  return (std::filesystem::path(path).parent_path() / "config.json").string();
}

bool is_gpt_config(const std::string& config_path) {
  if (!has_name(config_path)) return false;
  const json config = read_json_file(config_path, limits);
  return config.is_object() && config.value("model_type", json()) == "gpt2";
}

GptConfig read_gpt_config(const std::string& config_path) {
  if (!has_name(config_path)) {
    fail_input("{}: there is no such file, expected one with the sizes of the weights beside it",
               config_path);
  }
  return config_of(config_path, read_json_file(config_path, limits));
}

std::optional<GptConfig> find_gpt_config(const std::string& config_path) {
  if (!has_name(config_path)) return std::nullopt;
  const json config = read_json_file(config_path, limits);
  if (!config.is_object() || !config.contains("model_type")) return std::nullopt;
  return config_of(config_path, config);
}

std::string gpt_config_text(const GptConfig& config) {
  // GPT-2's vocabulary ends with its end-of-text token, 50256. Byte models have no such token.
  const char* end_of_text = config.vocab == 50257 ? "50256" : "null";
  JsonObject json;
  json.raw("architectures", R"(["GPT2LMHeadModel"])")
      .add("model_type", "gpt2")
      .add("vocab_size", config.vocab)
      .add("n_positions", config.context)
      .add("n_ctx", config.context)
      .add("n_embd", config.width)
      .add("n_layer", config.layers)
      .add("n_head", config.heads)
      .raw("n_inner", "null")
      .add("activation_function", "gelu_new")
      .add("resid_pdrop", config.dropout)
      .add("embd_pdrop", config.dropout)
      .add("attn_pdrop", 0.0f)
      .add("layer_norm_epsilon", config.epsilon)
      .add("initializer_range", config.initializer_range)
      .add("scale_attn_weights", true)
      .add("tie_word_embeddings", true)
      .raw("bos_token_id", end_of_text)
      .raw("eos_token_id", end_of_text)
      .add("torch_dtype", "float32");
  return json.indented() + "\n";
}

std::optional<std::string> f32_config_text(const std::string& path) {
  auto config = nlohmann::ordered_json::parse(read_text_file(path, limits.bytes));
  bool changed = false;
  for (const char* name : {"torch_dtype", "dtype"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || *found == "float32") continue;
    *found = "float32";
    changed = true;
  }
  if (!changed) return std::nullopt;
  return config.dump(2) + "\n";
}

}  // namespace tessera::models
