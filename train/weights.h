// The weights of a model in training, to a safetensors file and from one, at every stage: no rank
// need hold the whole model, its tensors come by one after the other.
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
  std::vector<nn::NamedTensor> others = {};  // beside the weights, on the CPU; of rank 0
};

/// Parameters, of 16 bits their master weights, and running statistics, all as F32; rank 0 writes
/// the file, as a whole or not at all. A bucket at a time takes memory of communication while it
/// comes by. The plan of a run counts this, and what is sent, only for saves of its loop
/// (train/weight_saves.h): after the run, report_run goes before it. Where `path` cannot be
/// written, does what save_parameters does. Collective.
void save_weights(const std::string& path, const nn::Module& model, optim::ZeroOptimizer& optimizer,
                  const dist::World& world, const SaveOptions& options = {});

/// A file of weights in any format, while it is written.
struct WeightsSink {
  std::function<void(const nn::NamedParameter&, std::span<const float>)> write;  // each, whole
  std::function<void()> commit;  // without it nothing remains of the file
};

/// The file that save_weights writes, of a model that must outlive it. Throws InputError where
/// `path` cannot be written.
WeightsSink open_weights(const std::string& path, const nn::Module& model,
                         const SaveOptions& options = {});

/// Gives every parameter to what `open` returns for a path, on rank 0. Where that throws, as on a
/// full disk, the weights of hours are not lost: they go to a file of the same name in a new folder
/// of the working directory, or else of the directory for temporary files, and the Error that
/// rank 0 then throws says where they are. Collective.
void save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                     const dist::World& world,
                     const std::function<WeightsSink(const std::string&)>& open);

/// The same, but a failure is no error and its weights go nowhere else: returns why they could not
/// be written, on every rank; empty where they are. Collective.
std::string try_save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                                const dist::World& world,
                                const std::function<WeightsSink(const std::string&)>& open);

/// Gives all weights the values of a file; each rank reads what it holds. `optimizer` is the
/// model's. Throws InputError for a file that does not fit. Every rank calls it.
void load_weights(const std::string& path, const nn::Module& model,
                  optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
