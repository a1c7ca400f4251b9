// Reads and writes config.json. Hugging Face's transformers stores this file beside a GPT-2's
// weights.
#pragma once

#include <optional>
#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// The names of GptConfig's members in config.json and in gpt_metadata (models/gpt/gpt_metadata.h).
inline constexpr GptNames gpt_config_names{.layers = "n_layer",
                                           .heads = "n_head",
                                           .width = "n_embd",
                                           .context = "n_positions",
                                           .vocab = "vocab_size",
                                           .epsilon = "layer_norm_epsilon"};

/// Returns the path of config.json in the folder that contains the file `path`.
std::string config_path_beside(const std::string& path);

/// True if the file exists and describes a model of type gpt2. Throws InputError for a file that is
/// not JSON.
bool is_gpt_config(const std::string& config_path);

/// Reads the sizes, the norms' epsilon and initializer_range in a config.json. Throws InputError if
///   - the file does not exist or is not a JSON object;
///   - a size is absent;
///   - a size is not a whole number, or epsilon or initializer_range is neither a number nor null;
///   - epsilon or initializer_range is out of the range of fp32;
///   - GptConfig::validate refuses a size, epsilon or initializer_range;
///   - a setting asks for something that Gpt does not support.
GptConfig read_gpt_config(const std::string& config_path);

/// Like read_gpt_config, but returns nullopt if the file does not exist, or if it has no member
/// model_type and so may not describe a model. Throws InputError as read_gpt_config does, for
/// instance for a model_type other than gpt2.
std::optional<GptConfig> find_gpt_config(const std::string& config_path);

/// Returns the text of a config.json that transformers can read.
std::string gpt_config_text(const GptConfig& config);
/// If the config.json at `path` names another `torch_dtype` or `dtype` than float32, returns its
/// text with float32 instead. Otherwise programs would round F32 weights when they load them.
/// Returns nullopt if there is nothing to change. Throws as read_gpt_config does.
std::optional<std::string> f32_config_text(const std::string& path);

}  // namespace tessera::models
