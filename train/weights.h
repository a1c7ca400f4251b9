// Saves the weights of a model in training to a safetensors file and loads them, at every stage. No
// rank needs to hold the whole model: its tensors are handled one after the other.
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
  int64_t batches = 0;  // micro-batches that the running statistics have seen
  std::vector<nn::NamedTensor> others = {};  // further tensors of the file, on the CPU; of rank 0
};

/// Saves parameters (of 16-bit ones the master weights) and running statistics, all as F32. Rank 0
/// writes the file, as a whole or not at all. One bucket at a time is gathered into memory of
/// Category::communication. The plan of a run counts this memory and traffic only for saves of its
/// loop (train/weight_saves.h), so report_run comes before a save at the end. If `path` cannot be
/// written, does what save_parameters does. Collective.
void save_weights(const std::string& path, const nn::Module& model, optim::ZeroOptimizer& optimizer,
                  const dist::World& world, const SaveOptions& options = {});

/// A file of weights in any format, while it is written.
struct WeightsSink {
  std::function<void(const nn::NamedParameter&, std::span<const float>)> write;  // one, as a whole
  std::function<void()> commit;  // without it the file is discarded
};

/// Opens the file that save_weights writes. The model must outlive it. Throws InputError if `path`
/// cannot be written.
WeightsSink open_weights(const std::string& path, const nn::Module& model,
                         const SaveOptions& options = {});

/// On rank 0, writes every parameter to the sink that `open` returns for a path. If that throws, as
/// on a full disk, the weights are not lost: they are written to a file of the same name in a new
/// folder of the working directory, or else of the directory for temporary files. Rank 0 then
/// throws an Error that says where they are. Collective.
void save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                     const dist::World& world,
                     const std::function<WeightsSink(const std::string&)>& open);

/// As save_parameters, but a failure is no error, and the weights are not written elsewhere.
/// Returns on every rank why they could not be written, or an empty text. Collective.
std::string try_save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                                const dist::World& world,
                                const std::function<WeightsSink(const std::string&)>& open);

/// Sets all weights from a file; each rank reads what it holds. `optimizer` must be the model's.
/// Throws InputError for a file that does not fit. Every rank must call it.
void load_weights(const std::string& path, const nn::Module& model,
                  optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
