// A rank's shard of a checkpoint: a safetensors file with the rank's pieces of the state tensors
// (optim::StatePiece). In the file, each piece is a one-dimensional tensor. Its name is the path of
// the state tensor and the index of the piece's first element: "wte.weight/exp_avg/131072".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/checkpoint/manifest.h"

namespace tessera::train {

/// The shard that a rank has written. Ranges refer to tensors by index in write_shard's `tensors`.
struct WrittenShard {
  CheckpointFile file;
  std::vector<CheckpointRange> ranges;
};

/// Writes pieces, which must be in host memory, to a file in `folder`, and computes their digests.
/// First reads the pieces that are views of the optimizer's memory (StatePiece::is_copy is false).
/// Then calls `views_read` if it is not null, and reads the pieces that are copies. The file is on
/// the disk when the function returns. `tensors` must be the result of
/// ZeroOptimizer::state_tensors(). Throws if the file cannot be written.
WrittenShard write_shard(const std::string& folder, const std::string& name,
                         const std::vector<optim::StatePiece>& pieces,
                         const std::vector<optim::StateTensor>& tensors,
                         const std::function<void()>& views_read = nullptr);

/// Returns "shard-00001-of-00004.safetensors" for rank 0 of 4.
std::string shard_name(int rank, int ranks);
/// True if the name of a file begins as that of a shard.
bool is_shard_name(const std::string& name);

/// Returns the description of a shard as text, which ranks send to rank 0.
std::string shard_text(const WrittenShard& shard);
/// Parses the result of shard_text.
WrittenShard parse_shard(const std::string& text);

}  // namespace tessera::train
