// What the commands of checkpoint do, each of which prints to standard output and returns the
// program's exit code.
#pragma once

#include <memory>
#include <string>

#include "apps/checkpoint_options.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::apps {

/// Whether a path is one checkpoint, whole or not, rather than a folder of checkpoints: its name is
/// a checkpoint's, or it has a manifest. Throws InputError where there is no such folder.
bool is_one_checkpoint(const std::string& path);
/// The steps of a folder, the newest first. Throws InputError where it has none.
std::vector<int64_t> steps_in(const std::string& folder);
/// The checkpoint at a path, or the newest in a folder that is whole, every byte of it verified.
/// Throws InputError where there is none.
std::unique_ptr<train::CheckpointReader> open_whole_checkpoint(const std::string& path);
/// Of all its files.
int64_t total_bytes(const train::Manifest& manifest);

/// A name or value as it is; quoted and cut where it is long or would not be one line.
std::string plain(const std::string& text);

int inspect_checkpoints(const CheckpointToolOptions& options);
/// Throws Error, and not InputError, where a checkpoint is not whole.
int verify_checkpoints(const CheckpointToolOptions& options);
/// 0 where all tensors are equal, else 1.
int diff_checkpoints(const CheckpointToolOptions& options);
int export_checkpoint(const CheckpointToolOptions& options);
int import_weights(const CheckpointToolOptions& options);

}  // namespace tessera::apps
