// config.json, as transformers keeps it beside the weights of a GPT-2.
#pragma once

#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// config.json in the folder of `path`.
std::string config_path_beside(const std::string& path);

/// Whether the file is there and describes a model of type gpt2. Throws InputError for a file that
/// is no JSON.
bool is_gpt_config(const std::string& config_path);

/// The sizes in a config.json. Throws InputError where they are absent, beyond GptConfig's limits,
/// or ask for what Gpt is not.
GptConfig read_gpt_config(const std::string& config_path);

/// A config.json with the sizes, as transformers reads it.
std::string gpt_config_text(const GptConfig& config);

}  // namespace tessera::models
