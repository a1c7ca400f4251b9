// A checkpoint of weights that others trained, with which a run goes on, optionally with the state
// of the optimizer that trained them.
//
//   train::import_checkpoint({.weights = "gpt2/model.safetensors",
//                             .folder = "runs/a",
//                             .moments = "gpt2/state.safetensors"});
//
// The files are read and written in parts of bounded size, so that a model need not fit in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/checkpoint/manifest.h"

namespace tessera::train {

struct ImportOptions {
  std::string weights;       // a file, or a GPT's folder (imported_tensor.h)
  std::string folder;        // of checkpoints; made where it is not there
  std::string moments = {};  // the optimizer's state; empty: zeros, and no updates so far
  /// adamw, adam, sgd, or plain-sgd, which has no momentum: what state is made. Empty: that of the
  /// moments, else adamw's.
  std::string optimizer = {};
  /// Steps that are finished; by default the number that all counts of updates have, without
  /// moments 0.
  std::optional<int64_t> step = std::nullopt;
  int64_t shard_bytes = int64_t{1} << 28;  // of tensors in a file, and in memory
};

struct ImportedCheckpoint {
  std::string path;
  Manifest manifest;
};

/// Writes folder/step-N as a run writes it: whole and flushed to the disk, or not at all. Throws
/// InputError, naming file and tensor, for what cannot be imported; where the folder has this step
/// or a later one, with which a run would go on instead; and where it has the files to be read.
ImportedCheckpoint import_checkpoint(const ImportOptions& options);

}  // namespace tessera::train
