// The weights of a model in training, to a safetensors file and from one, at every stage: no rank
// need hold the whole model, its tensors come by one after the other.
//
//   train::load_weights("pretrained.safetensors", model, optimizer);
//   ... steps ...
//   train::save_weights("out.safetensors", model, optimizer, world);
#pragma once

#include <cstdint>
#include <string>

#include "dist/bootstrap.h"
#include "nn/module.h"
#include "nn/safetensors.h"
#include "optim/zero_optimizer.h"

namespace tessera::train {

struct SaveOptions {
  nn::SafetensorsMetadata metadata = {{"format", "pt"}};
  int64_t batches = 0;  // micro-batches that the running statistics have seen
};

/// Parameters, of 16 bits their master weights, and running statistics, all as F32; rank 0 writes
/// the file, as a whole or not at all. Each tensor takes memory of communication while it comes by,
/// which no plan of a run counts: report_run goes before it. Throws InputError where it cannot be
/// written. Collective.
void save_weights(const std::string& path, const nn::Module& model, optim::ZeroOptimizer& optimizer,
                  const dist::World& world, const SaveOptions& options = {});

/// Gives all weights the values of a file; each rank reads what it holds. `optimizer` is the
/// model's. Throws InputError for a file that does not fit. Every rank calls it.
void load_weights(const std::string& path, const nn::Module& model,
                  optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
