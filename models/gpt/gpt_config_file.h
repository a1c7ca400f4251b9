// config.json, as transformers keeps it beside the weights of a GPT-2.
#pragma once

#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// The path of config.json in the folder of `path`.
std::string config_path_beside(const std::string& path);

/// True if the file exists and describes a model of type gpt2. Throws InputError for a file that is
/// not JSON.
bool is_gpt_config(const std::string& config_path);

/// Reads the sizes in a config.json. Throws InputError if a size is absent or beyond GptLimits, or
/// if a setting asks for something that Gpt does not support.
GptConfig read_gpt_config(const std::string& config_path);

/// The text of a config.json with these sizes, as transformers reads it.
std::string gpt_config_text(const GptConfig& config);

}  // namespace tessera::models
