// Reads the sizes of a GPT from a file of weights, before a model of these sizes is built. The
// shapes of the tensors give most sizes; config.json beside the file gives heads and epsilon.
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

/// Returns the path of the weights: `path` itself or, if it is a folder, its model.safetensors, as
/// transformers calls the file. Throws InputError for a folder whose weights are divided among
/// several files. For a folder that has only pytorch_model.bin, returns the path of that file,
/// which GptWeights then refuses.
std::string gpt_weights_path(const std::string& path);

/// Reads the sizes from a safetensors file and, if a GPT-2's config.json is beside the file, heads
/// and epsilon from there. Throws InputError, which names every size that differs, if the two files
/// disagree.
GptFileSizes read_gpt_file_sizes(const std::string& weights_path);

/// Returns the name of the preset with these sizes and this initializer_range. If there is no such
/// preset, returns a name made of layers and width: "gpt-2x128".
std::string gpt_name(const GptConfig& config);
/// Returns the name of the first preset that has all sizes which are known from a file. Returns an
/// empty string if no preset has them.
std::string preset_like(const GptFileSizes& sizes);

/// Reads the config of the model whose weights are in a file from config.json, which must be beside
/// that file. Throws InputError as read_gpt_config and read_gpt_file_sizes do.
GptConfig read_gpt_config_of(const std::string& weights_path);

}  // namespace tessera::models
