// A rank's part of a checkpoint: a safetensors file of its pieces, each a tensor of one dimension
// that is called after what it is a part of, "wte.weight/exp_avg/131072".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/checkpoint/manifest.h"

namespace tessera::train {

/// What a rank has written. Ranges name their tensors by the place in the list that was given.
struct WrittenShard {
  CheckpointFile file;
  std::vector<CheckpointRange> ranges;
};

/// Writes pieces, which are in the host's memory, to a file in `folder`, and digests them: first
/// those that are no copies, after which it calls `views_read`, if it is given. When it returns the
/// file is on the disk. `tensors` is the optimizer's list. Throws where it cannot.
WrittenShard write_shard(const std::string& folder, const std::string& name,
                         const std::vector<optim::StatePiece>& pieces,
                         const std::vector<optim::StateTensor>& tensors,
                         const std::function<void()>& views_read = nullptr);

/// "shard-00001-of-00004.safetensors", by number from 0.
std::string shard_name(int rank, int ranks);

/// As text, by which rank 0 hears of it, and back.
std::string shard_text(const WrittenShard& shard);
WrittenShard parse_shard(const std::string& text);

}  // namespace tessera::train
