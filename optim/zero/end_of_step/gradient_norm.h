// The norm of the whole gradient. Equal gradients give the same bits on any number of ranks. The
// owner of each block of 256 elements computes the block's sum of squares in fp64. The ranks gather
// all sums, and every rank adds them in parameter order. For a row-sparse table, only blocks with
// touched rows (rows that the step has looked up) are summed and sent: all other blocks would add
// +0.0.
#pragma once

#include <memory>
#include <vector>

#include "optim/kernels/step_end.h"
#include "optim/kernels/step_scalars.h"
#include "optim/tables/table.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

class GradientNorm {
 public:
  /// A parameter of a partition, or a table if `partition` is null.
  struct Part {
    const Partition* partition = nullptr;
    int parameter = 0;
    const Table* table = nullptr;
  };
  /// Makes a norm without parts.
  GradientNorm() = default;
  /// Allocates the block sums of `parts`. The partitions and tables of `parts` must outlive this
  /// object and not move. Sums are added in the order of `parts`. `parts` must contain all
  /// parameters of a partition or none.
  GradientNorm(std::shared_ptr<dist::Communicator> communicator, std::vector<Part> parts);

  /// Computes scalars->square_sum on the device of the ranks. The gradient sums of this rank's
  /// shards must be complete. The host waits for a GPU only if there are tables, or if ranks
  /// communicate over MPI. Collective.
  void compute(StepScalars* scalars);

  /// Returns the norm of each part's gradient sum, in order of parts. compute() must have been
  /// called. The host waits for the device.
  std::vector<double> of_parts() const;
  const std::vector<Part>& parts() const { return parts_; }

 private:
  void add_partition(const Partition& partition);
  void place_segments();
  void allocate(int64_t table_blocks);
  /// On a GPU: copies segments_ to table_.
  void copy_segments();
  void sum_tables();
  double* sums() const { return static_cast<double*>(sums_.raw()); }

  std::shared_ptr<dist::Communicator> communicator_;
  std::vector<Part> parts_;
  std::vector<const Partition*> partitions_;
  std::vector<int64_t> shard_firsts_;  // per partition: index of its first sum in a rank's sums
  std::vector<BlockSums::Segment> segments_;  // one for each part
  bool has_tables_ = false;
  int64_t dense_blocks_ = 0;  // blocks of all parameters of partitions
  int64_t table_blocks_ = 0;  // number of block sums of tables for which sums_ has memory
  int64_t per_rank_ = 0;  // number of blocks that one rank owns, over all partitions
  int64_t blocks_ = 0;    // number of blocks of all segments
  // On the device of the ranks, as bytes:
  Tensor sums_;          // f64 [ranks * per_rank], then the sums of each table in turn
  Tensor table_;         // on a GPU: a copy of segments_
  Tensor partial_sums_;  // on a GPU: f64 scratch
};

}  // namespace tessera::optim
