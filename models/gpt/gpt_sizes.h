// Reads the sizes of a GPT from a file of weights, before a model of these sizes is built: from the
// shapes of its tensors, and the rest from config.json beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

struct GptFileSizes {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t context = 0;
  int64_t vocab = 0;
  std::optional<int64_t> heads;  // heads and epsilon are in config.json only
  std::optional<float> epsilon;
};

/// The path of the weights: `path` itself, or if it is a folder, its model.safetensors, as
/// transformers calls it. Throws InputError for a folder whose weights are divided among several
/// files.
std::string gpt_weights_path(const std::string& path);

/// The sizes in a safetensors file and, if a GPT-2's config.json is beside it, in that file. Throws
/// InputError where the two disagree, naming every size that differs.
GptFileSizes read_gpt_file_sizes(const std::string& weights_path);

/// The name of the preset with these sizes and this initializer_range. If there is none, a name
/// made of layers and width: "gpt-2x128".
std::string gpt_name(const GptConfig& config);
/// The name of the preset with the sizes of a file, as far as the file has them; empty if there is
/// none.
std::string preset_like(const GptFileSizes& sizes);

/// The config of the model whose weights are in a file, from a config.json that must be beside it.
/// Throws InputError as read_gpt_config and read_gpt_file_sizes do.
GptConfig read_gpt_config_of(const std::string& weights_path);

}  // namespace tessera::models
