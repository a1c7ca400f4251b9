// The weights in a checkpoint as a safetensors file, as the program that wrote the checkpoint would
// have saved them at that step.
//
//   const train::CheckpointReader checkpoint("run/step-000000100");
//   checkpoint.verify();
//   train::export_weights(checkpoint, "model.safetensors");
//
// The manifest says which weights they are (Manifest::weights). A GPT gets transformers' names and
// config.json beside the file, an image classifier torchvision's names and its description. Other
// models keep their parameters' names. All of it is F32, read and written piece by piece, so that
// no tensor is ever in memory as a whole.
#pragma once

#include <string>

#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::train {

/// Writes the file as a whole or not at all. Throws InputError if it cannot be written, or if the
/// checkpoint's tensors are not those of the model that its manifest describes.
void export_weights(const CheckpointReader& checkpoint, const std::string& path);

/// The number of micro-batches that running statistics have seen: all those of each step with an
/// update, or the number in the file that the checkpoint was imported from. 0 if the manifest does
/// not say.
int64_t batches_tracked(const Manifest& manifest);
/// The key of that number in the metadata of an imported checkpoint.
inline constexpr const char* imported_batches_key = "num_batches_tracked";

}  // namespace tessera::train
