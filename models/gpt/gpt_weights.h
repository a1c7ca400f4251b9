// A GPT's weights as Hugging Face's GPT-2 stores them: a safetensors file, and config.json beside
// it with the sizes. Our parameters have the same names and layout, so that only a prefix differs.
//
//   GptWeights weights("gpt2/model.safetensors", model);   // checks every tensor
//   weights.load();                                        // a model in memory, or
//   optimizer.set_parameters(weights.source());            // what is held of it
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

/// A file of weights that fits a model. The names may have the prefix "transformer.". The tied head
/// "lm_head.weight", and the mask buffers of old files, are not needed.
class GptWeights {
 public:
  /// Checks that the file has every parameter, in its shape and as F32, BF16 or F16, and nothing
  /// else, and that config.json beside it, if there is one, says the same as the model. Throws
  /// InputError.
  GptWeights(const std::string& path, const Gpt& model);

  /// Overwrites the model's parameters, rounding to their dtype. Allocates parameters without
  /// memory. Here and in read() a finite weight that an f16 parameter cannot hold is an InputError.
  void load() const;

  /// Reads elements [begin, begin + out.size()) of one of the model's parameters.
  void read(const nn::NamedParameter& named, int64_t begin, std::span<float> out) const;

  /// read() as a ParameterSource; this object must outlive it.
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

/// Writes a model's weights as F32, parameter by parameter, and config.json beside them; each file
/// as a whole or not at all.
class GptWriter {
 public:
  /// Uses only the model's config, names and shapes. Throws InputError where `path` cannot be
  /// written.
  GptWriter(const std::string& path, const Gpt& model);

  /// Writes elements [begin, begin + values.size()) of a parameter; in any order, each element
  /// once.
  void write(const nn::NamedParameter& named, std::span<const float> values, int64_t begin = 0);

  /// Makes the files appear. Throws where an element was not written.
  void commit();

 private:
  std::string config_path_;
  GptConfig config_;
  nn::SafetensorsWriter file_;
};

/// A tensor's name without the prefix that transformers gives it.
std::string_view without_gpt_prefix(std::string_view name);

/// Throws InputError if config.json beside `path` describes a GPT of other sizes, since weights and
/// config.json cannot be replaced in one step.
void check_gpt_config_beside(const std::string& path, const Gpt& model);

/// Throws InputError where GptWriter could not write, or would replace another model's config.json.
void check_gpt_destination(const std::string& path);

}  // namespace tessera::models
