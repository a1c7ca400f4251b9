// Checkpoints: all that a run needs in order to go on with the same bits, on any number of ranks
// and at any stage (docs/checkpoints.md).
//
//   train::save_checkpoint("run", optimizer, world, {.step = 100});     // run/step-000000100
//   ...
//   const auto found = train::find_checkpoint("run", world);            // the newest whole one
//   if (found) train::restore_checkpoint(*found, optimizer, world);
//   int64_t step = found ? found->manifest().step : 0;
//
// A folder has a checkpoint a step. Each is written under a temporary name, shards by the ranks
// that own them, flushed to the disk, then the manifest, and gets its own name last: what is not
// whole is never taken for a checkpoint.
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

/// What a checkpoint says of its run besides the optimizer's state.
struct CheckpointInfo {
  int64_t step = 0;         // steps that are finished
  int64_t skipped = 0;      // of these, without an update
  std::optional<BestEvaluation> best = std::nullopt;  // so far, where its weights are kept
  dist::Settings run = {};  // as the manifest has them
  dist::Settings bits = {};
  std::map<std::string, std::string> weights = {};
};

/// "step-000000100".
std::string checkpoint_name(int64_t step);
/// Whether a path ends with such a name, which is then the folder of one checkpoint.
bool names_checkpoint(const std::string& path);
/// The steps of which a folder has a checkpoint by its name, the newest first. None where the
/// folder is not there.
std::vector<int64_t> checkpoint_steps(const std::string& folder);

/// Writes a checkpoint, between steps, and returns its digest. Throws on every rank, with the
/// rank's own reason, where one cannot write; then nothing of it remains, and those before it are
/// as they were. Collective.
BlockDigest save_checkpoint(const std::string& folder, optim::ZeroOptimizer& optimizer,
                            const dist::World& world, const CheckpointInfo& info);

// What save_checkpoint consists of, for those who write while steps go on.
/// Where the checkpoint of a step is written, until it is whole.
std::string partial_folder(const std::string& folder, int64_t step);
/// The manifest of what all ranks have written, as shard_text.
Manifest manifest_of(const std::vector<std::string>& shards, const optim::ZeroOptimizer& optimizer,
                     const dist::World& world, const CheckpointInfo& info);
/// Adds what was written of the manifest's tensors: files, ranges and digest.
void add_shards(Manifest& manifest, std::vector<WrittenShard> shards);
/// Writes the manifest, and gives the checkpoint its name.
void commit_checkpoint(const std::string& folder, const Manifest& manifest);
/// Removes old checkpoints up to `newest`, which was written last, but the `keep` newest of them;
/// and those of later steps, which were passed over because they are not whole, and would be taken
/// for newer ones. The caller is the folder's only writer.
void prune_checkpoints(const std::string& folder, int64_t newest, int64_t keep);
/// Removes what writers that are gone have left.
void remove_partial_checkpoints(const std::string& folder);

/// The newest checkpoint of a folder that is whole; null where it has none. Every rank reads its
/// share of the bytes and compares digests. Warns of those that it passes over. Throws InputError
/// where there are some and none is whole. Collective.
std::unique_ptr<CheckpointReader> find_checkpoint(const std::string& folder,
                                                  const dist::World& world);
/// The checkpoint in just this folder. Throws InputError where it is not whole. Collective.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path,
                                                  const dist::World& world);
/// Gives the optimizer the state of a checkpoint. Throws InputError, before anything is changed,
/// where it is of another model or rule. Every rank calls it.
void restore_checkpoint(const CheckpointReader& checkpoint, optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
