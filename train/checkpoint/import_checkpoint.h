// Makes a checkpoint of weights that another program has trained, optionally with the state of its
// optimizer, so that a run can go on from there.
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
  std::string folder;        // of checkpoints; made if it is missing
  std::string moments = {};  // the optimizer's state; empty: zeros, and no updates so far
  /// Whose state is made: adamw, adam, sgd, or plain-sgd, which has no momentum. Empty: that of
  /// `moments`, or adamw's without moments.
  std::string optimizer = {};
  /// Steps that are finished. By default the count of updates that all parameters have, or 0
  /// without moments.
  std::optional<int64_t> step = std::nullopt;
  int64_t shard_bytes = int64_t{1} << 28;  // bytes of tensors per file, and in memory
};

struct ImportedCheckpoint {
  std::string path;
  Manifest manifest;
};

/// Writes folder/step-N as a run writes it: whole and flushed to the disk, or not at all. Throws
/// InputError, naming file and tensor, for files that cannot be imported. Also throws it if the
/// folder has a checkpoint of this step or a later one, from which a run would go on instead, and
/// if the folder has the files to be read.
ImportedCheckpoint import_checkpoint(const ImportOptions& options);

}  // namespace tessera::train
