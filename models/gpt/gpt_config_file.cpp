#include "models/gpt/gpt_config_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/text/json_line.h"
#include "core/text/output_file.h"

namespace tessera::models {
namespace {

using nlohmann::json;

// What is in the file, or nothing of a type that JSON has.
json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return json(json::value_t::discarded);
  return json::parse(file, nullptr, false);
}

int64_t size_of(const std::string& path, const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) fail_input("{}: it has no {}", path, key);
  if (!found->is_number_integer()) {
    fail_input("{}: {} is {}, expected a whole number", path, key, found->dump());
  }
  return found->get<int64_t>();
}

// A setting that changes what the model computes: it must have the one value that Gpt computes.
void check_setting(const std::string& path, const json& config, const char* key,
                   std::initializer_list<json> supported) {
  const auto found = config.find(key);
  if (found == config.end()) return;
  for (const json& value : supported) {
    if (*found == value) return;
  }
  fail_input("{}: {} is {}, and only {} is supported", path, key, found->dump(),
             supported.begin()->dump());
}

}  // namespace

std::string config_path_beside(const std::string& path) {
  return (std::filesystem::path(path).parent_path() / "config.json").string();
}

bool is_gpt_config(const std::string& config_path) {
  const json config = read_json(config_path);
  return config.is_object() && config.value("model_type", json()) == "gpt2";
}

GptConfig read_gpt_config(const std::string& config_path) {
  const json config = read_json(config_path);
  if (!config.is_object()) {
    fail_input(
        "{}: {}", config_path,
        std::filesystem::exists(config_path) ? "is not a JSON object" : "there is no such file");
  }
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
  check_setting(config_path, config, "n_inner", {nullptr, 4 * sizes.width});
  if (const auto epsilon = config.find("layer_norm_epsilon"); epsilon != config.end()) {
    if (!epsilon->is_number()) fail_input("{}: layer_norm_epsilon is not a number", config_path);
    sizes.epsilon = epsilon->get<float>();
  }
  try {
    sizes.validate();
  } catch (const InputError& error) {
    fail_input("{}: {}", config_path, error.what());
  }
  return sizes;
}

void write_gpt_config(const std::string& config_path, const GptConfig& config) {
  // GPT-2's own vocabulary ends with its end-of-text token; a byte has no such meaning.
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
  OutputFile file(config_path);
  file.write(json.indented() + "\n");
  file.commit();
}

}  // namespace tessera::models
