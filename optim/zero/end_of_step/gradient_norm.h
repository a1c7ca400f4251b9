// The norm of the whole gradient, with the same bits for any number of ranks. The owner of each
// block of 256 elements computes the block's sum of squares in fp64. The ranks gather all sums, and
// every rank adds them in parameter order.
#pragma once

#include <memory>
#include <vector>

#include "optim/kernels/step_end.h"
#include "optim/kernels/step_scalars.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

class GradientNorm {
 public:
  /// The norm of no parameters.
  GradientNorm() = default;
  /// Allocates the block sums of the partitions, which must outlive this object and not move.
  GradientNorm(std::shared_ptr<dist::Communicator> communicator,
               std::vector<const Partition*> partitions);

  /// Computes scalars->square_sum on the device of the ranks. The gradient sums of this rank's
  /// shards must be complete. The host does not wait for a GPU. Collective.
  void compute(StepScalars* scalars);

  /// Returns the norm of each parameter's gradient sum, in order of partitions and their
  /// parameters. compute() must have been called. The host waits for the device.
  std::vector<double> of_parameters() const;

 private:
  void add_segments(const Partition& partition);

  std::shared_ptr<dist::Communicator> communicator_;
  std::vector<const Partition*> partitions_;
  std::vector<BlockSums::Segment> segments_;
  int64_t per_rank_ = 0;  // number of blocks that one rank owns, over all partitions
  int64_t blocks_ = 0;    // number of blocks of all parameters
  // On the device of the ranks, as bytes:
  Tensor sums_;          // f64 [ranks * per_rank]
  Tensor table_;         // on CUDA: a copy of segments_
  Tensor partial_sums_;  // on CUDA: f64 scratch
};

}  // namespace tessera::optim
