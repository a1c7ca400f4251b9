// The norm of the whole gradient, the same bits for any number of ranks: fp64 sums of squares of
// blocks of 256 elements are made where the blocks are, all of them travel, and every rank adds
// them up in parameter order.
#pragma once

#include <memory>
#include <vector>

#include "optim/kernels/step_end.h"
#include "optim/kernels/step_scalars.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

class GradientNorm {
 public:
  /// Of no parameter.
  GradientNorm() = default;
  /// Makes room for the partitions' block sums. The partitions must stay where they are.
  GradientNorm(std::shared_ptr<dist::Communicator> communicator,
               std::vector<const Partition*> partitions);

  /// scalars->square_sum, where the ranks compute. The own shards' gradient sums must be complete.
  /// Collective. The host does not wait for a GPU.
  void compute(StepScalars* scalars);

  /// Of each parameter, in the order of partitions and of their parameters, after compute(). Waits.
  std::vector<double> of_parameters() const;

 private:
  void add_segments(const Partition& partition);

  std::shared_ptr<dist::Communicator> communicator_;
  std::vector<const Partition*> partitions_;
  std::vector<BlockSums::Segment> segments_;
  int64_t per_rank_ = 0;  // blocks, over all partitions
  int64_t blocks_ = 0;    // of all parameters
  // Where the ranks compute, as bytes:
  Tensor sums_;          // f64 [ranks * per_rank]
  Tensor table_;         // on CUDA segments_,
  Tensor partial_sums_;  // and f64 scratch
};

}  // namespace tessera::optim
