// The weights of any model as a safetensors file: every parameter under its name, and running
// statistics under torch's names for them (bn1.running_mean, running_var, num_batches_tracked).
//
//   nn::save_weights("out.safetensors", model);             // a model in memory, in one call
//   nn::load_weights("out.safetensors", model);
//
// Under an optimizer no process needs to hold the whole model (train/weights.h):
//
//   nn::WeightsFile weights("model.safetensors", model);    // checks every tensor
//   optimizer.set_parameters(weights.source());
//   weights.load_statistics(model);
//
//   nn::WeightsWriter writer("out.safetensors", model);
//   ... writer.write(named, values) for every parameter, in any order ...
//   writer.commit(model, batches);
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "nn/parameter_source.h"
#include "nn/safetensors.h"

namespace tessera::nn {

/// A file of weights that fits a model.
class WeightsFile {
 public:
  /// Throws InputError unless the file has every parameter, running mean and running variance of
  /// the model, each in its shape and as F32, BF16 or F16. The file may also have
  /// num_batches_tracked and the tensors named in `others`, but no other tensor.
  WeightsFile(const std::string& path, const Module& model,
              const std::vector<std::string>& others = {});

  /// Returns the file's values as a source, which throws as read_weights does. This object must
  /// outlive the source.
  ParameterSource source() const;
  /// Overwrites the model's running statistics, which must have memory. Throws InputError for a
  /// value that is not finite and for a negative variance.
  void load_statistics(const Module& model) const;
  /// Overwrites parameters and running statistics, for inference. Allocates those without memory.
  /// Throws if a parameter belongs to an optimizer.
  void load(Module& model) const;

 private:
  void expect(const std::string& name, const Shape& shape);

  SafetensorsReader file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// Writes a file of a model's weights as F32, which appears complete or not at all.
class WeightsWriter {
 public:
  /// Uses only the names and shapes of the model. Writes the tensors `others` beside the weights.
  /// Throws InputError if `path` cannot be written.
  WeightsWriter(const std::string& path, const Module& model,
                const SafetensorsMetadata& metadata = {{"format", "pt"}},
                const std::vector<NamedTensor>& others = {});

  /// Writes a whole parameter.
  void write(const NamedParameter& named, std::span<const float> values);
  /// Writes the running statistics, which were collected over `batches` batches, and makes the file
  /// appear. Throws if a parameter was not written.
  void commit(const Module& model, int64_t batches);

 private:
  SafetensorsWriter file_;
};

/// Writes all weights of a model that is in memory. Throws if a parameter has no values in this
/// process, as under ZeRO stage 3 (use train::save_weights there). Throws InputError if the file
/// cannot be written.
void save_weights(const std::string& path, const Module& model);
/// Overwrites all weights of a model with those of a file. Allocates parameters without memory.
/// Throws if a parameter belongs to an optimizer (use train::load_weights there), and InputError if
/// the file does not fit the model.
void load_weights(const std::string& path, Module& model);

// Building blocks, also for formats with other tensor names (models/gpt/gpt_weights.h).

/// Returns the tensors of a model's file: first `others`, then the parameters in order of
/// registration, then the running statistics.
std::vector<SafetensorsSpec> weights_specs(const Module& model,
                                           const std::vector<NamedTensor>& others = {});
/// Suffixes to a batch norm's name. They give the names of its running mean, of its running
/// variance, and of the number of batches that both were collected over.
inline constexpr const char* running_mean_suffix = ".running_mean";
inline constexpr const char* running_variance_suffix = ".running_var";
inline constexpr const char* batches_suffix = ".num_batches_tracked";

/// Throws InputError unless the tensor has this shape and is F32, BF16 or F16.
void check_weights(const std::string& path, const SafetensorsEntry& entry, const Shape& shape);

/// Reads elements [begin, begin + out.size()) of a parameter to `out`. Throws InputError for a
/// finite weight that the parameter's dtype cannot hold.
void read_weights(const SafetensorsReader& file, const SafetensorsEntry& entry,
                  const NamedParameter& named, int64_t begin, std::span<float> out);

/// Overwrites a parameter with values of `source`, rounded to its dtype. Allocates it on the
/// default device if it has no memory. Throws if the parameter belongs to an optimizer.
void load_parameter(const NamedParameter& named, const ParameterSource& source);

}  // namespace tessera::nn
