// The commands of the program `checkpoint`. Each prints to standard output and returns the
// program's exit code.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/checkpoint_options.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::apps {

/// True if the folder `path` is one checkpoint, whole or damaged: the folder is named like a
/// checkpoint, or has a manifest. False for any other folder, which is taken for a folder of
/// checkpoints. Throws InputError if there is no folder `path`.
bool is_one_checkpoint(const std::string& path);
/// The training step of each checkpoint in a folder, the newest first. Throws InputError if there
/// are none.
std::vector<int64_t> steps_in(const std::string& folder);
/// Opens the checkpoint at `path`, or the newest whole checkpoint in the folder `path`. Verifies
/// every byte. Throws InputError if there is no whole checkpoint.
std::unique_ptr<train::CheckpointReader> open_whole_checkpoint(const std::string& path);
/// The size of all shard files of a checkpoint, in bytes. The manifest's own file is not counted.
int64_t total_bytes(const train::Manifest& manifest);

/// Formats a name or a setting's value for printing. Plain ASCII of at most 100 bytes with nothing
/// to escape is unchanged. Other text is cut after 100 bytes, escaped, and put in quotes.
std::string plain(const std::string& text);

/// Lists the checkpoints of a folder, or shows one. Throws Error, after it has printed the list, if
/// one of the listed checkpoints cannot be read. A checkpoint that a run removes meanwhile is left
/// out.
int inspect_checkpoints(const CheckpointToolOptions& options);
/// Throws Error, not InputError, if a checkpoint is not whole or cannot be read: the exit code is
/// then 1, not 2. In a folder of checkpoints, one that a run removes meanwhile does not count as
/// damaged.
int verify_checkpoints(const CheckpointToolOptions& options);
/// Returns 0 if all tensors are equal, else 1.
int diff_checkpoints(const CheckpointToolOptions& options);
int export_checkpoint(const CheckpointToolOptions& options);
int import_weights(const CheckpointToolOptions& options);

}  // namespace tessera::apps
