// A GPT's weights as Hugging Face's GPT-2 stores them: a safetensors file, and config.json beside
// it with the sizes. Our parameters have the same names and layout, so that only a prefix differs.
//
//   GptWeights weights("gpt2/model.safetensors", model);   // checks every tensor
//   ... lay the parameters out ...
//   weights.load();
//
// transformers loads what `save_gpt` writes if the file is called model.safetensors.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/gpt.h"
#include "nn/safetensors.h"

namespace tessera::apps {

/// A file of weights that fits a model. The names may have the prefix "transformer.". The tied head
/// "lm_head.weight", and the mask buffers of old files, are not needed.
class GptWeights {
 public:
  /// Checks that the file has every parameter, in its shape and as F32, and nothing else, and that
  /// config.json beside it, if there is one, says the same as the model. Throws InputError.
  GptWeights(const std::string& path, const models::Gpt& model);

  /// Overwrites the model's parameters. Those without memory get it.
  void load() const;

 private:
  void check_head(const nn::SafetensorsEntry& head, const nn::SafetensorsEntry& table) const;

  nn::SafetensorsReader file_;
  std::vector<std::pair<nn::NamedParameter, nn::SafetensorsEntry>> matches_;
};

/// Writes the weights and config.json beside them. Throws InputError where they cannot be written.
void save_gpt(const models::Gpt& model, const std::string& path);

/// Throws InputError where save_gpt could not write, or would replace another model's config.json.
void check_gpt_destination(const std::string& path);

}  // namespace tessera::apps
