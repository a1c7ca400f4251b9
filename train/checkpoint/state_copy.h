// The copy of a rank's training state from which an asynchronous checkpoint is written. The copy
// holds all pieces of the state, or at most CheckpointOptions::staging bytes of pieces if this
// limit is set. Large pieces are chosen before small pieces. The thread that writes the checkpoint
// reads the remaining pieces in place while the next step's forward and backward run. The next
// step's update waits for these reads.
//
// Some state is always copied, even beyond the limit: numbers of updates, the loss scaler's state,
// and running statistics of batch norms. State in GPU memory is always copied too, because the
// thread cannot read GPU memory. On a GPU without offload, all state is therefore always copied, so
// a limit below the state's size is refused.
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
  /// Chooses the pieces to copy, and allocates memory (Category::checkpoint) for them. Throws
  /// InputError on a GPU without offload if the limit is below the size of the rank's state.
  StateCopy(const CheckpointOptions& options, const std::vector<optim::StatePiece>& pieces,
            optim::Offload offload);

  /// Copies the pieces for which the constructor has allocated memory. `pieces` must have the sizes
  /// given to the constructor. In the result, `is_copy` is true for each piece whose `values` are a
  /// copy. The values of all other pieces must be read before the next update.
  std::vector<optim::StatePiece> take(std::vector<optim::StatePiece> pieces) const;

 private:
  std::vector<Tensor> copies_;  // one per piece; undefined for pieces that are not copied
};

}  // namespace tessera::train
