// The weights of any model as a safetensors file: every parameter under its name, and running
// statistics under torch's names for them (bn1.running_mean, running_var, num_batches_tracked).
//
//   nn::save_weights("out.safetensors", model);             // a model in memory, in one call
//   nn::load_weights("out.safetensors", model);
//
// Where an optimizer has laid the model out, which nobody may hold whole (train/weights.h):
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
  /// Checks that the file has every parameter and running statistic, in its shape and as F32, BF16
  /// or F16, and nothing else but tensors of the names in `others`. Throws InputError.
  WeightsFile(const std::string& path, const Module& model,
              const std::vector<std::string>& others = {});

  /// The values of the file, which must outlive what is returned; throws as read_weights does.
  ParameterSource source() const;
  /// Overwrites the model's running statistics, which have memory.
  void load_statistics(const Module& model) const;
  /// Both, for inference; what has no memory gets it.
  void load(Module& model) const;

 private:
  void expect(const std::string& name, const Shape& shape);

  SafetensorsReader file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// Writes a model's weights as F32, as a whole or not at all.
class WeightsWriter {
 public:
  /// Of the model only names and shapes are used. `others` are written beside its weights. Throws
  /// InputError where nothing can be written.
  WeightsWriter(const std::string& path, const Module& model,
                const SafetensorsMetadata& metadata = {{"format", "pt"}},
                const std::vector<NamedTensor>& others = {});

  /// A whole parameter.
  void write(const NamedParameter& named, std::span<const float> values);
  /// Writes the running statistics, which are of so many batches, and makes the file appear.
  void commit(const Module& model, int64_t batches);

 private:
  SafetensorsWriter file_;
};

/// All weights of a model that is in memory. Throws where a parameter has no values here, as
/// at ZeRO's stage 3 (train::save_weights). Throws InputError where the file cannot be written.
void save_weights(const std::string& path, const Module& model);
/// Overwrites all weights of a model by those of a file; what has no memory gets it. Throws where a
/// parameter belongs to an optimizer (train::load_weights), and InputError where the file does not
/// fit.
void load_weights(const std::string& path, Module& model);

// What files of weights with names of their own are made of.

/// The tensors of a model's file, in their order: `others`, parameters by registration, statistics.
std::vector<SafetensorsSpec> weights_specs(const Module& model,
                                           const std::vector<NamedTensor>& others = {});
/// What follows the name of a batch norm in the names of its running statistics, and of the number
/// of batches that they have seen.
inline constexpr const char* running_mean_suffix = ".running_mean";
inline constexpr const char* running_variance_suffix = ".running_var";
inline constexpr const char* batches_suffix = ".num_batches_tracked";

/// Throws InputError unless the tensor has this shape and is F32, BF16 or F16.
void check_weights(const std::string& path, const SafetensorsEntry& entry, const Shape& shape);

/// Elements [begin, begin + out.size()) for a parameter. Throws InputError for a finite weight that
/// the parameter cannot hold.
void read_weights(const SafetensorsReader& file, const SafetensorsEntry& entry,
                  const NamedParameter& named, int64_t begin, std::span<float> out);

/// Overwrites a parameter, rounding to its dtype; gives it memory on the default device if it has
/// none.
void load_parameter(const NamedParameter& named, const ParameterSource& source);

}  // namespace tessera::nn
