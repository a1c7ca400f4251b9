// The norm of the whole gradient, the same bits for any number of ranks: fp64 sums of squares of
// blocks of 256 elements are made where the blocks are, all of them travel, and every rank adds
// them up in parameter order.
#pragma once

#include <memory>
#include <vector>

#include "dist/host_buffer.h"
#include "optim/partition.h"

namespace tessera::optim {

class GradientNorm {
 public:
  explicit GradientNorm(std::shared_ptr<dist::Communicator> communicator);

  /// Makes room for one more partition's block sums.
  void add(const Partition& partition);

  /// The own shards' gradient sums must be complete. Collective.
  double compute();

  /// Of one parameter, after compute().
  double of_parameter(const Partition& partition, int parameter) const;

 private:
  struct Entry {
    const Partition* partition;
    int64_t first_block;  // in a rank's block sums
  };
  /// Adds the block sums of a parameter to `total`, block by block.
  double parameter_sum(const Entry& entry, int parameter, double total) const;

  std::shared_ptr<dist::Communicator> communicator_;
  std::vector<Entry> entries_;
  int64_t blocks_ = 0;  // of one rank, over all partitions
  dist::HostBuffer sums_;  // f64 as bytes [ranks * blocks]
};

}  // namespace tessera::optim
