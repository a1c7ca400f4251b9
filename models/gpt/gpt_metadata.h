// The config of a GPT, except `recompute` and `loss_chunk_rows`, as a map of strings. The map
// replaces config.json where weights are stored without a config.json, as in a checkpoint.
//
//   manifest.weights = models::gpt_metadata(model.config());
//   const models::Gpt model(models::parse_gpt_metadata("manifest.json", manifest.weights));
#pragma once

#include <map>
#include <string>

#include "models/gpt/gpt.h"

namespace tessera::models {

/// Returns {"format": "pt", "model_type": "gpt2", "n_layer": "12", ...}. Floats are written as the
/// shortest text that reads back to the same value.
std::map<std::string, std::string> gpt_metadata(const GptConfig& config);

/// True if `metadata` describes a GPT.
bool describes_gpt(const std::map<std::string, std::string>& metadata);

/// Reads the config from gpt_metadata's map. Throws InputError if a field is absent, is not a
/// number, or is out of range (GptConfig::validate). The error's message begins with `where`.
GptConfig parse_gpt_metadata(const std::string& where,
                             const std::map<std::string, std::string>& metadata);

}  // namespace tessera::models
