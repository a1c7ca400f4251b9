// Reads the sizes of a GPT from a file of weights, so that a model of these sizes can be built.
// Most sizes are read from the names and shapes of the tensors. The number of attention heads and
// the norms' epsilon are read from config.json beside the file of weights.
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
  std::optional<int64_t> heads;  // attention heads; like epsilon, in config.json only
  std::optional<float> epsilon;
};

/// Returns the path of the weights:
///   - `path` itself, if it is not a folder;
///   - the folder's pytorch_model.bin, if the folder has this file but no model.safetensors.
///     GptWeights then refuses the file;
///   - for any other folder, its model.safetensors, which is transformers' name for the weights.
/// Throws InputError for a folder whose weights are divided among several files, which may be
/// safetensors files or pickles.
std::string gpt_weights_path(const std::string& path);

/// Reads the sizes from a safetensors file. If a config.json with a model_type is beside the file,
/// also reads the number of attention heads and the norms' epsilon from config.json, and throws
/// InputError as read_gpt_config does. If the two files disagree, throws an InputError that names
/// every size that differs. Throws InputError for one of several files among which transformers
/// has divided the weights, such as model-00001-of-00002.safetensors with its index beside it.
GptFileSizes read_gpt_file_sizes(const std::string& weights_path);

/// Returns the name of the preset with these sizes and this initializer_range. If there is no such
/// preset, returns a name made of layers and width: "gpt-2x128".
std::string gpt_name(const GptConfig& config);
/// Returns the name of the first preset that has these sizes. The number of attention heads is
/// compared only if `sizes.heads` is set. Returns an empty string if no preset fits.
std::string preset_like(const GptFileSizes& sizes);

/// Reads the config of a model from config.json, which must be beside the file of weights, and may
/// lack model_type. Throws InputError as read_gpt_config and read_gpt_file_sizes do, and if the two
/// files disagree.
GptConfig read_gpt_config_of(const std::string& weights_path);

}  // namespace tessera::models
