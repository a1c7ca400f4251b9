// The copy of a rank's own state from which an asynchronous checkpoint is written, as large as
// CheckpointOptions::staging allows. State that has no room in the copy is read in place by the
// writer, while the next step's forward and backward run; that step's update waits for the reads.
//
// Some state is always copied, even beyond the limit: counts and the loss scale; running statistics
// of batch norms, which belong to the forward; and state in GPU memory, which the writer's thread
// cannot read.
#pragma once

#include <vector>

#include "optim/zero/optimizer_state.h"
#include "optim/zero/options.h"
#include "train/training_run.h"

namespace tessera::train {

class StateCopy {
 public:
  /// An empty copy, for no pieces.
  StateCopy() = default;
  /// Allocates memory for pieces like these (Category::checkpoint). Throws InputError if pieces in
  /// GPU memory need more than the limit and are not offloaded.
  StateCopy(const CheckpointOptions& options, const std::vector<optim::StatePiece>& pieces,
            optim::Offload offload);

  /// Copies the pieces that have memory here. In the result, `is_copy` is true if a piece's values
  /// stay as they are now.
  std::vector<optim::StatePiece> take(std::vector<optim::StatePiece> pieces) const;

 private:
  std::vector<Tensor> copies_;  // one per piece; undefined if the piece is not copied here
};

}  // namespace tessera::train
