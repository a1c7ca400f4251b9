// Checkpoints: all that a run needs in order to go on with the same bits, on any number of ranks
// and at any stage (docs/checkpoints.md).
//
//   train::save_checkpoint("run", optimizer, world, {.step = 100});     // run/step-000000100
//   ...
//   const auto found = train::find_checkpoint("run", world);            // the newest whole one
//   if (found) train::restore_checkpoint(*found, optimizer);
//   int64_t step = found ? found->manifest().step : 0;
//
// A folder has one checkpoint per saved step. Each is written under a temporary name: first the
// shards, by the ranks that own them, then the manifest, all of it flushed to the disk. It gets its
// final name last, so that an incomplete one is never taken for a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/shard_file.h"
#include "train/score.h"

namespace tessera::train {

/// What a checkpoint records of its run besides the optimizer's state.
struct CheckpointInfo {
  int64_t step = 0;         // steps that are finished
  int64_t skipped = 0;      // finished steps without an update
  std::optional<BestEvaluation> best = std::nullopt;  // so far, if its weights are kept
  dist::Settings run = {};  // as in Manifest
  dist::Settings bits = {};
  std::map<std::string, std::string> weights = {};
};

/// "step-000000100".
std::string checkpoint_name(int64_t step);
/// True if a path ends with such a name, as the folder of one checkpoint does.
bool names_checkpoint(const std::string& path);
/// The steps of a folder's checkpoints by their names, newest first. Empty without the folder.
std::vector<int64_t> checkpoint_steps(const std::string& folder);

/// Writes a checkpoint, between steps, and returns its digest. If a rank cannot write, throws on
/// every rank, with that rank's reason; then nothing of the checkpoint remains, and earlier ones
/// are unchanged. Collective.
BlockDigest save_checkpoint(const std::string& folder, optim::ZeroOptimizer& optimizer,
                            const dist::World& world, const CheckpointInfo& info);

// The parts of save_checkpoint, for writing while steps go on.
/// The folder in which the checkpoint of a step is written until it is whole.
std::string partial_folder(const std::string& folder, int64_t step);
/// The manifest of the shards that all ranks have written, given as shard_text of each rank.
Manifest manifest_of(const std::vector<std::string>& shards, const optim::ZeroOptimizer& optimizer,
                     const dist::World& world, const CheckpointInfo& info);
/// Adds the files, ranges and digests of written shards to a manifest.
void add_shards(Manifest& manifest, std::vector<WrittenShard> shards);
/// Writes the manifest, and gives the checkpoint its final name.
void commit_checkpoint(const std::string& folder, const Manifest& manifest);
/// Removes old checkpoints up to `newest`, the one written last, except the `keep` newest of them.
/// Also removes those of later steps: they were passed over because they are not whole, and would
/// be taken for newer ones. The caller must be the folder's only writer.
void prune_checkpoints(const std::string& folder, int64_t newest, int64_t keep);
/// Removes what ended writers have left unfinished.
void remove_partial_checkpoints(const std::string& folder);

/// The newest whole checkpoint of a folder; null if the folder has none. Every rank reads its share
/// of the bytes and compares digests. Warns of checkpoints that are not whole. Throws InputError if
/// there are checkpoints, but none is whole. Collective.
std::unique_ptr<CheckpointReader> find_checkpoint(const std::string& folder,
                                                  const dist::World& world);
/// The checkpoint in exactly this folder. Throws InputError if it is not whole. Collective.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path,
                                                  const dist::World& world);
/// Gives the optimizer the state of a checkpoint. Throws InputError, before anything is changed, if
/// the checkpoint is of another model or rule. Every rank must call it.
void restore_checkpoint(const CheckpointReader& checkpoint, optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
