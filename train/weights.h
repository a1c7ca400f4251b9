// Saves and loads the weights of a model under a ZeroOptimizer, at every ZeRO stage. The weights
// are in a safetensors file. No rank needs additional memory for the whole model: saving gathers
// one bucket or one row-sparse table at a time, and each rank loads only the values that it stores.
//
//   train::load_weights("pretrained.safetensors", model, optimizer);
//   ... steps ...
//   train::save_weights("out.safetensors", model, optimizer, world);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "nn/module.h"
#include "nn/safetensors.h"
#include "optim/zero_optimizer.h"

namespace tessera::train {

struct SaveOptions {
  nn::SafetensorsMetadata metadata = {{"format", "pt"}};
  int64_t batches = 0;  // number of micro-batches from which the running statistics were computed
  std::vector<nn::NamedTensor> others = {};  // additional tensors for the file, on rank 0's CPU
};

/// Saves parameters and running statistics as F32. A trained 16-bit parameter is saved from its
/// master weights. Rank 0 writes the file, which appears complete or not at all. One bucket or one
/// row-sparse table at a time is gathered into memory of Category::communication. If `path` cannot
/// be written, tries other places, as save_parameters does. Collective.
///
/// Model and optimizer must have the same parameters. Otherwise, for instance after
/// ZeroOptimizer::add_param_group with another module, throws on every rank before anything is
/// written. In this case, get the values from ZeroOptimizer::for_each_parameter, which needs no
/// model.
///
/// report_run (train/step_loop.h) compares the measured memory and traffic of a run with its plan.
/// The plan includes saves during the run (train/weight_saves.h), but not a save at its end. Make
/// such a save after report_run has returned, or in the function that is passed to report_run as
/// `before_tables`: report_run calls it after the measurement.
void save_weights(const std::string& path, const nn::Module& model, optim::ZeroOptimizer& optimizer,
                  const dist::World& world, const SaveOptions& options = {});

/// A file of weights that is being written, in any format.
struct WeightsSink {
  std::function<void(const nn::NamedParameter&, std::span<const float>)> write;  // one parameter
  std::function<void()> commit;  // completes the file; without this call the file is discarded
};

/// Opens the file that save_weights writes. The model must outlive the sink. If `path` cannot be
/// written, throws InputError, or Error if the reason is the machine (fail_to_open).
WeightsSink open_weights(const std::string& path, const nn::Module& model,
                         const SaveOptions& options = {});

/// On rank 0, writes every parameter to the sink that `open` returns for a path. If opening or
/// writing fails, for instance on a full disk, tries to write a file of the same name elsewhere:
/// first in a new folder in the working directory, then in a new folder in the directory for
/// temporary files. Even if this succeeds, rank 0 throws an Error. The Error names the place of the
/// weights, or says that they are lost. Collective.
void save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                     const dist::World& world,
                     const std::function<WeightsSink(const std::string&)>& open);

/// Writes every parameter as save_parameters does, and tries the same other places, but does not
/// throw, so that the caller can write other files. Returns an empty text if `path` was written.
/// Otherwise rank 0 prints a warning with the reason. The warning also names the place of the
/// weights, or says that they are lost. Every rank then returns a short message without the place.
/// Collective.
std::string save_or_rescue(const std::string& path, optim::ZeroOptimizer& optimizer,
                           const dist::World& world,
                           const std::function<WeightsSink(const std::string&)>& open);

/// Writes every parameter as save_parameters does, but after a failure does not throw and does not
/// try other places. On every rank, returns the reason of the failure, or an empty text.
/// Collective.
std::string try_save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                                const dist::World& world,
                                const std::function<WeightsSink(const std::string&)>& open);

/// Sets all weights and running statistics from a file. Each rank reads only the values that it
/// stores. `optimizer` must be the model's optimizer. The update rule then starts anew: state and
/// counts of updates are zero. Throws InputError for a file that does not fit the model. If model
/// and optimizer do not have the same parameters, for instance after ZeroOptimizer::add_param_group
/// with another module, throws on every rank before a weight is set; use
/// ZeroOptimizer::set_parameters then. Every rank must make this call.
void load_weights(const std::string& path, const nn::Module& model,
                  optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
