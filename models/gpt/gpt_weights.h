// A GPT's weights as Hugging Face's GPT-2 stores them: a safetensors file, and config.json beside
// it with the sizes. Our parameters have the same names and layout, so that only a prefix differs.
//
//   GptWeights weights("gpt2/model.safetensors", model);   // checks every tensor
//   weights.load();                                        // into a model in memory, or
//   optimizer.set_parameters(weights.source());            // into an optimizer's shards
//
//   GptWriter writer("out/model.safetensors", model);
//   ... writer.write(named, values) for every parameter, in any order ...
//   writer.commit();
//
// transformers loads what GptWriter writes if the file is called model.safetensors.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "models/gpt/gpt.h"
#include "nn/parameter_source.h"
#include "nn/safetensors.h"

namespace tessera::models {

/// A file of weights that fits a model. The names may have the prefix "transformer.". The file need
/// not have the tied head "lm_head.weight". Mask buffers of old files are ignored.
class GptWeights {
 public:
  /// Throws InputError unless the file has every parameter, in its shape and as F32, BF16 or F16,
  /// and nothing else. Also throws InputError if the head differs from the token table, or if a
  /// GPT-2's config.json beside the file differs from the model's config.
  GptWeights(const std::string& path, const Gpt& model);

  /// Overwrites the model's parameters, rounding to their dtype. Allocates parameters without
  /// memory. Throws if a parameter belongs to an optimizer. load() and read() throw InputError for
  /// a finite weight that an f16 parameter cannot hold.
  void load() const;

  /// Reads elements [begin, begin + out.size()) of one of the model's parameters to `out`.
  void read(const nn::NamedParameter& named, int64_t begin, std::span<float> out) const;

  /// Returns read() as a ParameterSource. This object must outlive the source.
  nn::ParameterSource source() const;

 private:
  struct Match {
    nn::NamedParameter named;
    nn::SafetensorsEntry entry;
  };

  void check_head(const nn::SafetensorsEntry& head, const nn::SafetensorsEntry& table) const;

  nn::SafetensorsReader file_;
  std::map<std::string, Match> matches_;  // by the parameter's name
};

/// Writes a model's weights as F32, parameter by parameter, and config.json beside them. Each file
/// appears complete or not at all.
class GptWriter {
 public:
  /// Uses only the model's config, names and shapes. Throws InputError if `path` cannot be written.
  GptWriter(const std::string& path, const Gpt& model);

  /// Writes elements [begin, begin + values.size()) of a parameter. Elements may be written in any
  /// order, but each only once.
  void write(const nn::NamedParameter& named, std::span<const float> values, int64_t begin = 0);

  /// Makes the files appear. Throws if an element was not written.
  void commit();

 private:
  std::string config_path_;
  GptConfig config_;
  nn::SafetensorsWriter file_;
};

/// Returns a tensor's name without the prefix "transformer.".
std::string_view without_gpt_prefix(std::string_view name);

/// Throws InputError if config.json beside `path` describes a GPT of other sizes. Weights and
/// config.json cannot be replaced in one step, so a crash between the two could leave files that
/// disagree.
void check_gpt_config_beside(const std::string& path, const Gpt& model);

/// Throws InputError if GptWriter could not write to `path`, or if it would replace a config.json
/// that is not a GPT-2's.
void check_gpt_destination(const std::string& path);

}  // namespace tessera::models
