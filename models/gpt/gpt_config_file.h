// Reads config.json and makes its text. Hugging Face's transformers stores this file beside a
// GPT-2's weights.
#pragma once

#include <optional>
#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// The names that the sizes and the epsilon have in config.json and in gpt_metadata
/// (models/gpt/gpt_metadata.h), for the messages of GptConfig::validate.
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

/// Reads the sizes, the norms' epsilon and initializer_range in a config.json. If epsilon or
/// initializer_range is absent or null, it keeps GptConfig's default. Throws InputError if
///   - the file does not exist or is not a JSON object;
///   - a size is absent;
///   - a size is not a whole number, or epsilon or initializer_range is neither a number nor null;
///   - epsilon or initializer_range is out of the range of fp32;
///   - GptConfig::validate refuses a size, epsilon or initializer_range;
///   - a setting asks for something that Gpt does not support.
GptConfig read_gpt_config(const std::string& config_path);

/// Like read_gpt_config, but returns nullopt if the file does not exist, is not a JSON object, or
/// has no member model_type, because such a file perhaps does not describe a model. In other cases
/// throws InputError as read_gpt_config does, for instance if model_type is not gpt2.
std::optional<GptConfig> find_gpt_config(const std::string& config_path);

/// Returns the text of a config.json that transformers can read.
std::string gpt_config_text(const GptConfig& config);
/// Returns the text of the config.json at `path`, with float32 in place of every other dtype in its
/// members `torch_dtype` and `dtype`, because a program that reads another dtype rounds F32 weights
/// when it loads them. Returns nullopt if neither member has to change. The file must be one that
/// read_gpt_config accepts.
std::optional<std::string> f32_config_text(const std::string& path);

}  // namespace tessera::models
