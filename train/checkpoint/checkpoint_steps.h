// Tells which checkpoints a folder of checkpoints has. Each is in a folder of its own, whose name
// has the step: step-000000100. Folders of saved weights (train/weight_saves.h) have such names
// too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

/// Returns "step-000000100" for step 100.
std::string checkpoint_name(int64_t step);
/// True if the last part of a path is the name of a checkpoint, such as "step-000000100".
bool names_checkpoint(const std::string& path);
/// True if a folder contains a manifest, as every whole checkpoint does. False if the folder cannot
/// be read.
bool has_manifest(const std::string& folder);
/// True if a folder contains a file with the name of a shard, as every whole checkpoint does. False
/// if the folder cannot be read.
bool has_shard(const std::string& folder);
/// True if `folder` is a file, or has no manifest, but files or folders that are not shards, such
/// as saved weights. These files would be lost if a checkpoint replaced the folder. Hidden files do
/// not count. False if the folder cannot be read, because it may be a checkpoint.
bool has_other_files(const std::string& folder);

/// Returns the steps of a folder's entries that have the name of a checkpoint, newest first. Does
/// not look into the entries, so plain files and saved weights are listed too. The list is empty if
/// the folder does not exist. Throws InputError if the folder cannot be read, or Error if the
/// reason is the machine (fail_to_open in core/text/input_file.h).
std::vector<int64_t> steps_of_names(const std::string& folder);
/// Returns the steps of a folder's checkpoints, also of damaged ones: those of steps_of_names,
/// except where has_other_files is true and there is no shard.
std::vector<int64_t> checkpoint_steps(const std::string& folder);
/// Throws InputError if the folder has an entry with the name of a checkpoint of a step after
/// `done`, and has_other_files is true for the entry. No checkpoint may replace such an entry.
void check_names_are_free(const std::string& folder, int64_t done);

}  // namespace tessera::train
