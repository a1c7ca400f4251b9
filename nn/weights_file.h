// The weights of any model as a safetensors file. Every parameter is stored under its name. Running
// statistics have torch's names: bn1.running_mean, bn1.running_var, bn1.num_batches_tracked.
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
  /// Throws InputError if
  ///   - a parameter, running mean or running variance of the model is absent, has another shape,
  ///     or is not F32, BF16 or F16;
  ///   - the file has a tensor that is not in the model and not named in `others`. The tensor
  ///     num_batches_tracked of each batch norm of the model is allowed, and may be absent. The
  ///     same holds for tensors under further names of shared parameters (Module::further_names),
  ///     but not for a shared batch norm's statistics under further names;
  ///   - the tensor under a further name of a parameter has another shape or other values than the
  ///     tensor under the parameter's first name, or is not F32, BF16 or F16.
  WeightsFile(const std::string& path, const Module& model,
              const std::vector<std::string>& others = {});

  /// Returns the file's values as a source. This object must outlive the source. The source throws
  /// as read_weights does. It also throws InputError if it is asked for a parameter that is not in
  /// the file, for example one of another model.
  ParameterSource source() const;
  /// Overwrites the model's running statistics, which must have memory. Throws InputError if a
  /// value is not finite or a variance is negative.
  void load_statistics(const Module& model) const;
  /// Overwrites parameters and running statistics, for inference. Allocates memory for those that
  /// have none. Throws as load_statistics does, before anything is changed. Also throws as
  /// read_weights does, and if a parameter belongs to an optimizer. After such an error, parameters
  /// that had no memory still have none, except those that were read before the error.
  void load(Module& model) const;

 private:
  /// Returns the file's tensor of this name. Throws InputError if there is none.
  const SafetensorsEntry& entry(const std::string& name) const;
  void expect(const std::string& name, const Shape& shape);
  /// Throws InputError if the tensor `name` does not fit as a further name of the parameter whose
  /// first name is `first`, or has other values.
  void check_further(const std::string& name, const std::string& first) const;
  /// Returns the mean and the variance of each of model.named_statistics(), in this order, as f32
  /// tensors on the CPU. Throws as load_statistics does.
  std::vector<Tensor> read_statistics(const Module& model) const;
  /// Copies the result of read_statistics to the model.
  static void copy_statistics(const std::vector<Tensor>& values, const Module& model);

  SafetensorsReader file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// Writes a model's weights as F32. The file appears complete or not at all.
class WeightsWriter {
 public:
  /// Uses only the names and shapes of the model. Also writes the tensors `others` into the file.
  /// Throws as OutputFile does if `path` cannot be written.
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

/// Writes all weights of a model that is in memory. Throws as WeightsWriter's constructor does, and
/// Error if writing fails. Throws if a parameter has no values in this process, as under ZeRO stage
/// 3, or is a row-sparse table of an optimizer; use train::save_weights then.
void save_weights(const std::string& path, const Module& model);
/// Overwrites all weights of a model with those of a file. Weights without memory get memory.
/// Throws InputError if the file does not fit the model. Throws if a parameter belongs to an
/// optimizer; use train::load_weights instead.
void load_weights(const std::string& path, Module& model);

// The declarations below are for other code that reads or writes weights: checkpoints' export and
// import, and files with other tensor names (models/gpt/gpt_weights.h).

/// Returns the tensors of a model's file: first `others`, then the parameters in order of
/// registration, then the running statistics.
std::vector<SafetensorsSpec> weights_specs(const Module& model,
                                           const std::vector<NamedTensor>& others = {});
/// A batch norm has three tensors in a file: the running mean, the running variance, and the number
/// of batches over which they were collected.
inline constexpr const char* running_mean_name = "running_mean";
inline constexpr const char* running_variance_name = "running_var";
inline constexpr const char* batches_name = "num_batches_tracked";
/// Returns the name in a file of one of these tensors: "bn1.running_mean" for the batch norm "bn1".
/// A model that is itself a batch norm has an empty name, and its tensors have no prefix.
std::string statistics_name(const std::string& batch_norm, const std::string& tensor);

/// Throws InputError unless the tensor has the shape `shape` and is F32, BF16 or F16.
void check_weights(const std::string& path, const SafetensorsEntry& entry, const Shape& shape);

/// True if two tensors of equal shapes, each F32, BF16 or F16, have equal values. A NaN counts as
/// equal to a NaN. Reads both tensors in pieces.
bool same_weights(const SafetensorsReader& file, const SafetensorsEntry& a,
                  const SafetensorsEntry& b);

/// Reads elements [begin, begin + out.size()) of a parameter into `out`. Throws InputError for a
/// finite weight that would become infinity in a 16-bit parameter.
void read_weights(const SafetensorsReader& file, const SafetensorsEntry& entry,
                  const NamedParameter& named, int64_t begin, std::span<float> out);

/// Overwrites a parameter with values of `source`, rounded to the parameter's dtype. A parameter
/// without memory gets memory on the default device. Throws if the parameter belongs to an
/// optimizer.
void load_parameter(const NamedParameter& named, const ParameterSource& source);

}  // namespace tessera::nn
