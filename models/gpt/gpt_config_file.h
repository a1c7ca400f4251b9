// config.json, as transformers keeps it beside the weights of a GPT-2.
#pragma once

#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// config.json in the folder of `path`.
std::string config_path_beside(const std::string& path);

/// Whether the file is there and describes a model of type gpt2.
bool is_gpt_config(const std::string& config_path);

/// The sizes in a config.json. Throws InputError where they are absent or ask for what Gpt is not.
GptConfig read_gpt_config(const std::string& config_path);

void write_gpt_config(const std::string& config_path, const GptConfig& config);

}  // namespace tessera::models
