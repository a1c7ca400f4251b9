// Checkpoints: all state that a run needs in order to resume with the same bits, on any number of
// ranks and at any ZeRO stage (docs/checkpoints.md).
//
//   train::save_checkpoint("run", optimizer, world, {.step = 100});     // run/step-000000100
//   ...
//   const auto found = train::find_checkpoint("run", world);            // the newest whole one
//   if (found) train::restore_checkpoint(*found, optimizer);
//   int64_t step = found ? found->manifest().step : 0;
//
// A folder has one checkpoint per saved step. A checkpoint is whole if all its files are there and
// unchanged. A checkpoint is written under a temporary name: every rank writes a file (shard) of
// its state, then rank 0 writes the manifest. The checkpoint gets its final name when all files are
// flushed to the disk. A checkpoint with a final name was therefore written completely.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_steps.h"
#include "train/checkpoint/shard_file.h"
#include "train/score.h"

namespace tessera::train {

/// The data of a run that a checkpoint records besides the optimizer's state.
struct CheckpointInfo {
  int64_t step = 0;                                   // steps that are finished
  int64_t skipped = 0;                                // finished steps without an update
  std::optional<BestEvaluation> best = std::nullopt;  // nullopt: no best weights were saved
  dist::Settings run = {};                            // see Manifest
  dist::Settings bits = {};                           // see Manifest
  std::map<std::string, std::string> weights = {};    // see Manifest
};

/// In a folder of checkpoints, the name of the file that the folder's writer locks.
inline constexpr const char* lock_name = "lock";
/// True if the last part of a path is the temporary name of a checkpoint, "step-000000100.partial"
/// or "step-000000100.before.partial" for step 100. The folder's next writer calls
/// remove_partial_checkpoints, which removes or renames files and folders with such a name.
bool names_partial_checkpoint(const std::string& path);

/// Returns why `path` is not a folder, or an empty text if it is one.
std::string why_no_folder(const std::string& path);

/// `texts` has one text per rank. Returns the first text that is not empty, as "rank N: text", or
/// an empty text if all texts are empty.
std::string first_failure(const std::vector<std::string>& texts);

/// Thrown by commit_checkpoint if the new checkpoint has its final name, but this name could not be
/// flushed to the disk. The checkpoint is whole, but is lost if the machine fails before the system
/// has written the name. The message says so.
class UnflushedCheckpoint : public Error {
 public:
  using Error::Error;
};

/// Error messages of checkpoints that fail: "the checkpoint of step 3 was not written: REASON", or,
/// after an UnflushedCheckpoint, "the checkpoint of step 3 is not safe on the disk: REASON".
inline constexpr const char* not_written = "was not written";
inline constexpr const char* not_safe = "is not safe on the disk";

/// Writes a checkpoint and returns its digest. Must be called between steps. If a rank cannot
/// write, throws on every rank, with the reason of the lowest rank that failed. In this case, no
/// file under the temporary name remains, and checkpoints of earlier steps are unchanged. Also
/// throws on every rank if the checkpoint is in its place, but may be lost (commit_checkpoint,
/// where UnflushedCheckpoint is thrown). Collective.
BlockDigest save_checkpoint(const std::string& folder, optim::ZeroOptimizer& optimizer,
                            const dist::World& world, const CheckpointInfo& info);

// The next five functions are parts of save_checkpoint. RunCheckpoints uses them instead of
// save_checkpoint, so that training continues while a checkpoint is written.
/// Returns the temporary path under which the checkpoint of a step is written.
std::string partial_folder(const std::string& folder, int64_t step);
/// Makes the folder partial_folder(folder, step) and returns its path. If `folder` or its parents
/// are missing, makes them too, and flushes their names to the disk, because a failure of the
/// machine that loses a folder loses its checkpoints. Throws a std::exception with the reason.
std::string make_partial_folder(const std::string& folder, int64_t step);
/// Makes the manifest of the shards that all ranks have written. `shards` contains the shard_text
/// of each rank.
Manifest manifest_of(const std::vector<std::string>& shards, const optim::ZeroOptimizer& optimizer,
                     const dist::World& world, const CheckpointInfo& info);
/// Adds the files, ranges and digests of written shards to a manifest.
void add_shards(Manifest& manifest, std::vector<WrittenShard> shards);
/// Writes the manifest, and gives the checkpoint its final name. A checkpoint of the same step is
/// replaced. Throws if a file or a folder with other files has the final name (has_other_files).
/// Throws UnflushedCheckpoint if the final name could not be flushed to the disk. A replaced
/// checkpoint is then kept under a temporary name (remove_partial_checkpoints).
void commit_checkpoint(const std::string& folder, const Manifest& manifest);
/// Keeps the `keep` newest checkpoints of steps up to `newest`, and removes the older ones.
/// `newest` is the step of the checkpoint written last. Ignores checkpoints without a manifest.
///
/// Checkpoints of steps after `newest` are from an earlier run, and the caller did not resume from
/// them. Removes those that are damaged (is_damaged): if they stayed, each later run would try them
/// first, and pass over them. Keeps the others with a warning, and adds their steps to
/// `whole_later`. Checkpoints whose steps are in `whole_later` are kept without being read, so the
/// caller should pass the same set again. The caller must be the folder's only writer.
void prune_checkpoints(const std::string& folder, int64_t newest, int64_t keep,
                       std::set<int64_t>& whole_later);
/// Removes all checkpoints with a temporary name. A checkpoint whose replacement was interrupted
/// gets its final name back instead. No writer of the folder may be running.
void remove_partial_checkpoints(const std::string& folder);

/// Opens the newest whole checkpoint of a folder. Returns null if the folder has no checkpoint.
/// Every rank reads a share of the bytes, and compares their digests with those in the manifest.
/// Passes over each checkpoint that is not whole, with a warning. Also passes over checkpoints that
/// a run removes during the search. Collective. Throws:
///  - InputError if the folder cannot be read, but Error if the reason is the machine;
///  - InputError if the folder has checkpoints but no whole one;
///  - InputError if a run removes checkpoints faster than they can be read;
///  - Error if a checkpoint is there but cannot be read, because this checkpoint may be whole.
std::unique_ptr<CheckpointReader> find_checkpoint(const std::string& folder,
                                                  const dist::World& world);
/// Opens the checkpoint in exactly this folder, and verifies it as find_checkpoint does. Throws
/// InputError if the checkpoint is not whole, and Error if it is there but cannot be read.
/// Collective.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path,
                                                  const dist::World& world);
/// Restores the optimizer's state from a checkpoint. Throws InputError, before anything is changed,
/// if the checkpoint has other tensors than the optimizer. Every rank must make this call.
void restore_checkpoint(const CheckpointReader& checkpoint, optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
