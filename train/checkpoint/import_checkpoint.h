// Makes a checkpoint from weights that another program has trained. The checkpoint can include the
// state of that program's optimizer. A run can resume from the checkpoint.
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
  std::string folder;        // folder of checkpoints; made if it is missing
  std::string moments = {};  // file of the optimizer's state; empty: zero state, 0 updates
  /// The optimizer whose state the checkpoint gets: adamw, adam, sgd, or plain-sgd (without
  /// momentum). Empty: the optimizer of the file `moments`, or adamw if there is no such file.
  std::string optimizer = {};
  /// Number of finished steps. nullopt: the count of updates in the file `moments`, where all
  /// parameters must have the same count. If there is no such file, the number is 0.
  std::optional<int64_t> step = std::nullopt;
  /// Maximum bytes of the tensors in one file. Only one file's tensors are in memory at a time.
  int64_t shard_bytes = int64_t{1} << 28;
};

struct ImportedCheckpoint {
  std::string path;
  Manifest manifest;
};

/// Writes the checkpoint into `folder` as a run does: whole and flushed to the disk, or not at all.
/// Throws InputError
///  - if an input file cannot be imported; the message names the file, and the tensor if one tensor
///    is the reason;
///  - if the folder has a checkpoint of the import's step or of a later step, because a run would
///    resume from that checkpoint;
///  - if one of the input files is in the folder;
///  - if another process writes checkpoints to the folder.
ImportedCheckpoint import_checkpoint(const ImportOptions& options);

}  // namespace tessera::train
