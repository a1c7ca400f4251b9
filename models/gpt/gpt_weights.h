// A GPT's weights as Hugging Face's GPT-2 stores them: a safetensors file, and beside it
// config.json with the sizes. Tessera's parameters have Hugging Face's layout, and Hugging Face's
// names without the prefix "transformer.".
//
//   GptWeights weights("gpt2/model.safetensors", model);   // checks every tensor
//   weights.load();                                        // into a model in memory, or
//   optimizer.set_parameters(weights.source());            // into an optimizer's shards
//
//   GptWriter writer("out/model.safetensors", model);
//   ... writer.write(named, values) for every parameter, in any order ...
//   writer.commit();
//
// Hugging Face's library `transformers` can load the written files if the weights' file is called
// model.safetensors.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "models/gpt/gpt.h"
#include "nn/parameter_source.h"
#include "nn/safetensors.h"

namespace tessera::models {

/// A file of weights that fits a model. The names may have the prefix "transformer.". The tied
/// output head "lm_head.weight" may be absent. Mask buffers of old files are ignored.
class GptWeights {
 public:
  /// Throws InputError if
  ///   - a parameter is absent, has another shape, or is not F32, BF16 or F16;
  ///   - the file has a tensor that the model lacks;
  ///   - the output head differs from the token table;
  ///   - config.json beside the file describes another kind of model, or a GPT whose sizes or
  ///     epsilon differ from the model's.
  GptWeights(const std::string& path, const Gpt& model);

  /// Overwrites the model's parameters, rounding to their dtype. A parameter without memory gets
  /// memory first. Throws if a parameter belongs to an optimizer. load() and read() throw
  /// InputError for a finite weight that would become infinity in a 16-bit parameter.
  void load() const;

  /// Reads elements [begin, begin + out.size()) of a parameter into `out`.
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

/// Writes a model's weights as F32, parameter by parameter, and config.json beside the weights. If
/// there is a config.json with the model's sizes and epsilon already, it keeps all its members;
/// only another dtype than float32 is replaced. Each file appears complete or not at all.
class GptWriter {
 public:
  /// Uses only the model's config, names and shapes. Throws as OutputFile does if `path` cannot be
  /// written.
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
/// True if the file has a GPT-2's embeddings and last norm, with or without the prefix.
bool has_gpt_tensors(const nn::SafetensorsReader& file);
/// True if the file has at least one tensor with the name of a GPT-2's embedding, of the weight of
/// its last norm, or of a tensor of a layer ("h.0.ln_1.weight"), with or without the prefix. Other
/// models may have such names too.
bool has_names_of_gpt(const nn::SafetensorsReader& file);

/// Throws InputError if config.json beside `path` describes another kind of model, or a GPT whose
/// sizes or epsilon differ from the model's. Call this function before a GptWriter overwrites
/// weights at `path`. The writer replaces such a config.json first, and then the weights. A crash
/// in between would leave the old weights beside the new config.json, with which they cannot be
/// read.
void check_gpt_config_beside(const std::string& path, const Gpt& model);

/// Throws InputError if
///   - GptWriter could not write a model of this configuration to `path`;
///   - GptWriter would replace a config.json that is not a GPT-2's;
///   - GptWriter would replace a config.json of another configuration, and the folder has GPT
///     weights in a file other than `path`, which could then no longer be read. Files that have
///     only a part of a GPT's weights count too, and so does each pytorch_model*.bin;
///   - GptWriter would replace a config.json of another configuration, and the folder cannot be
///     read. Throws Error instead if the cause is the machine, such as a failing disk.
void check_gpt_destination(const std::string& path, const GptConfig& config);

}  // namespace tessera::models
