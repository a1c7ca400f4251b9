// A rank's part of a checkpoint: a safetensors file of its pieces. Each piece is a tensor of one
// dimension, named after its state tensor and its first element: "wte.weight/exp_avg/131072".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/checkpoint/manifest.h"

namespace tessera::train {

/// What a rank has written. Ranges refer to tensors by index in the list given to write_shard.
struct WrittenShard {
  CheckpointFile file;
  std::vector<CheckpointRange> ranges;
};

/// Writes pieces, which must be in host memory, to a file in `folder`, and computes their digests.
/// Pieces that are no copies come first; then `views_read` is called, if it is given. The file is
/// on the disk when it returns. `tensors` is the optimizer's list. Throws if the file cannot be
/// written.
WrittenShard write_shard(const std::string& folder, const std::string& name,
                         const std::vector<optim::StatePiece>& pieces,
                         const std::vector<optim::StateTensor>& tensors,
                         const std::function<void()>& views_read = nullptr);

/// "shard-00001-of-00004.safetensors"; `rank` counts from 0, the name from 1.
std::string shard_name(int rank, int ranks);

/// The shard as text, which ranks send to rank 0, and the way back.
std::string shard_text(const WrittenShard& shard);
WrittenShard parse_shard(const std::string& text);

}  // namespace tessera::train
