// The copy of a rank's own state that an asynchronous checkpoint is written from, as large as
// CheckpointOptions::staging allows. What has no room there is read by the writer where it lies,
// while the next step's forward and backward run, and must be read before that step's update.
//
// Always copied, also beyond the limit, is what cannot wait so long: counts and the loss scale,
// running statistics of batch norms, which belong to the forward, and what is in a GPU's memory,
// which the writer's thread cannot read.
#pragma once

#include <vector>

#include "optim/zero/optimizer_state.h"
#include "optim/zero/options.h"
#include "train/training_run.h"

namespace tessera::train {

class StateCopy {
 public:
  /// For no pieces: nothing is copied.
  StateCopy() = default;
  /// For pieces like these, of which there is memory from now on (Category::checkpoint). Throws
  /// InputError where they need more than the limit because a GPU has them, and are not offloaded.
  StateCopy(const CheckpointOptions& options, const std::vector<optim::StatePiece>& pieces,
            optim::Offload offload);

  /// The pieces as the writer reads them: `is_copy` says of which the values stay as they are now.
  std::vector<optim::StatePiece> take(std::vector<optim::StatePiece> pieces) const;

 private:
  std::vector<Tensor> copies_;  // of each piece; undefined where it is read in place
};

}  // namespace tessera::train
