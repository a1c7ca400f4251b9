// Writes the weights in a checkpoint as a safetensors file. The file equals the file that the
// training program would have saved at the checkpoint's step. Only a recommender's file differs: it
// lacks the ids and histories, because a checkpoint does not have them.
//
//   const train::CheckpointReader checkpoint("run/step-000000100");
//   checkpoint.verify();
//   train::export_weights(checkpoint, "model.safetensors");
//
// The manifest describes the model (Manifest::weights). The names of tensors depend on the model:
//   GPT                the names of Hugging Face's transformers
//   image classifier   torchvision's names
//   other models       the names of the model's parameters
// A GPT also gets a config.json beside the file. For other models, the file's metadata repeat the
// manifest's description. Weights and running statistics are F32, and num_batches_tracked is I64.
// Tensors are read and written in pieces, so that a large tensor is never in memory as a whole.
#pragma once

#include <string>

#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::train {

/// Writes the file as a whole or not at all. Throws as OutputFile does if the file cannot be
/// written, and InputError if the checkpoint's tensors do not fit the model that its manifest
/// describes.
void export_weights(const CheckpointReader& checkpoint, const std::string& path);

/// Returns the number of micro-batches from which the running statistics were computed:
///  - for an imported checkpoint, the number in the imported file;
///  - for a run's checkpoint, the micro-batches per step times the steps with an update;
///  - 0 if the manifest lacks these numbers or they are invalid.
int64_t batches_tracked(const Manifest& manifest);
/// The key of the number of micro-batches in the metadata of an imported checkpoint.
inline constexpr const char* imported_batches_key = "num_batches_tracked";

}  // namespace tessera::train
