// What a GPT is, as a map of texts: the numbers of its config.json, for whoever keeps weights in a
// place that has no config.json, as a checkpoint does.
//
//   manifest.weights = models::gpt_metadata(model.config());
//   const models::Gpt model(models::parse_gpt_metadata("manifest.json", manifest.weights));
#pragma once

#include <map>
#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// {"format": "pt", "model_type": "gpt2", "n_layer": "12", ...}; floats as the shortest texts that
/// read back to the same ones.
std::map<std::string, std::string> gpt_metadata(const GptConfig& config);

/// Whether these are the metadata of a GPT.
bool describes_gpt(const std::map<std::string, std::string>& metadata);

/// The sizes again. Throws InputError, which begins with `where`, where one is absent, no number,
/// or beyond GptConfig's limits.
GptConfig parse_gpt_metadata(const std::string& where,
                             const std::map<std::string, std::string>& metadata);

}  // namespace tessera::models
