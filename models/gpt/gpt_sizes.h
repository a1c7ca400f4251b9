// The sizes of a GPT whose weights are in a file, before a model of these sizes is built: tensors
// have shapes, and config.json beside them says the rest.
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
  std::optional<int64_t> heads;  // no tensor has them: of config.json
  std::optional<float> epsilon;
};

/// A file of weights, or the one in a folder, which transformers calls model.safetensors. Throws
/// InputError for a folder whose weights are divided among files.
std::string gpt_weights_path(const std::string& path);

/// Those of a safetensors file and, where a GPT-2's config.json is beside it, of that too. Throws
/// InputError where the two disagree, naming every size that does.
GptFileSizes read_gpt_file_sizes(const std::string& weights_path);

/// The preset that has these sizes and this deviation of first weights; else "gpt-2x128", by layers
/// and width.
std::string gpt_name(const GptConfig& config);
/// The preset that has the sizes of a file, as far as it says them; empty where none has.
std::string preset_like(const GptFileSizes& sizes);

/// The config of the model whose weights are in a file, from a config.json that must be beside it.
/// Throws InputError as read_gpt_config and read_gpt_file_sizes do.
GptConfig read_gpt_config_of(const std::string& weights_path);

}  // namespace tessera::models
