// The weights in a checkpoint as a safetensors file, as the program that wrote the checkpoint would
// have saved them at that step.
//
//   const train::CheckpointReader checkpoint("run/step-000000100");
//   checkpoint.verify();
//   train::export_weights(checkpoint, "model.safetensors");
//
// What weights they are, the manifest says (Manifest::weights): a GPT gets transformers' names and
// config.json beside the file, a classifier of images torchvision's names and its description. Of
// other models each parameter has its own name. All of it is F32, read and written piece by piece,
// so that no tensor is ever in memory as a whole.
#pragma once

#include <string>

#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::train {

/// Writes the file as a whole or not at all. Throws InputError where it cannot be written, or the
/// checkpoint's tensors are not those of the model that its manifest describes.
void export_weights(const CheckpointReader& checkpoint, const std::string& path);

/// The number of micro-batches that running statistics have seen: of each update all of the step's,
/// or what the file said that the checkpoint was imported from. 0 where the manifest does not say.
int64_t batches_tracked(const Manifest& manifest);
/// Where the manifest of an imported checkpoint has that number among its metadata.
inline constexpr const char* imported_batches_key = "num_batches_tracked";

}  // namespace tessera::train
