// The commands of the program `checkpoint`. Each prints to standard output and returns the
// program's exit code.
#pragma once

#include <memory>
#include <string>

#include "apps/checkpoint_options.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::apps {

/// True if a path is one checkpoint, whole or damaged, rather than a folder of checkpoints: it is
/// named like a checkpoint, or has a manifest. Throws InputError if there is no such folder.
bool is_one_checkpoint(const std::string& path);
/// The steps of the checkpoints in a folder, the newest first. Throws InputError if there are none.
std::vector<int64_t> steps_in(const std::string& folder);
/// Opens the checkpoint at a path, or the newest whole one in a folder, and verifies every byte.
/// Throws InputError if there is none.
std::unique_ptr<train::CheckpointReader> open_whole_checkpoint(const std::string& path);
/// The size of all files of a checkpoint.
int64_t total_bytes(const train::Manifest& manifest);

/// A name or value for printing: unchanged if it has at most 100 bytes of plain ASCII and nothing
/// to escape; else in quotes with escapes, and cut after 100 bytes.
std::string plain(const std::string& text);

int inspect_checkpoints(const CheckpointToolOptions& options);
/// Throws Error, not InputError, if a checkpoint is not whole.
int verify_checkpoints(const CheckpointToolOptions& options);
/// Returns 0 if all tensors are equal, else 1.
int diff_checkpoints(const CheckpointToolOptions& options);
int export_checkpoint(const CheckpointToolOptions& options);
int import_weights(const CheckpointToolOptions& options);

}  // namespace tessera::apps
