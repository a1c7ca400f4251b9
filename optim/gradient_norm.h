// The global norm of a step's gradient: fp64 sums of blocks of 256 elements, folded in order of the
// parameters, so that it has the same bits for any number of ranks, any stage and any bucket size.
// Every rank contributes the sums of its own shard; all of them travel.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "optim/partition.h"

namespace tessera::optim {

class GradientNorm {
 public:
  explicit GradientNorm(std::shared_ptr<dist::Communicator> communicator);

  /// Makes room for the blocks of one more partition.
  void add(const Partition& partition);

  /// sqrt of the sum of squares over all partitions. Collective.
  double compute(const std::vector<const Partition*>& partitions);

 private:
  /// total plus the parameter's block sums, in order.
  double parameter_sum(const Partition& partition, int parameter, int64_t first_block,
                       double total) const;

  std::shared_ptr<dist::Communicator> communicator_;
  int64_t blocks_ = 0;  // of one rank
  Tensor sums_;         // u8: a piece of blocks_ doubles a rank
};

}  // namespace tessera::optim
