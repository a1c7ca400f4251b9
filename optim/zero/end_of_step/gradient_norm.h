// Computes the norm of the whole gradient. For equal gradients, the norm has the same bits on any
// number of ranks. Each gradient is divided into blocks of 256 elements. A rank computes, in fp64,
// the sum of squares of each block in its shards. Then every rank gathers the sums of all blocks.
// The ranks add the sums in an order that depends only on the order of the parameters. In a
// row-sparse table, only blocks with touched rows (rows that the step has looked up) are summed
// and sent, because the sums of all other blocks would be +0.0.
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
  /// Either parameter number `parameter` of a partition (a group of parameters in one flat buffer),
  /// or a row-sparse table if `partition` is null.
  struct Part {
    const Partition* partition = nullptr;
    int parameter = 0;
    const Table* table = nullptr;
  };
  /// Makes a norm without parts, to be replaced by assignment before compute() is called.
  GradientNorm() = default;
  /// Allocates memory for the block sums of `parts`. The partitions and tables of `parts` must
  /// outlive this object and not move. Block sums are added in the order of `parts`. For each
  /// partition, `parts` must contain all parameters or none.
  GradientNorm(std::shared_ptr<dist::Communicator> communicator, std::vector<Part> parts);

  /// Sets scalars->square_sum, in the memory of the ranks' device, to the sum of squares of the
  /// gradient sums. end_step (optim/kernels/step_end.h) computes the norm from it. The gradient
  /// sums of this rank's shards must be complete. The host waits for the GPU only if there are
  /// tables, or if ranks communicate over MPI. Collective.
  void compute(StepScalars* scalars);

  /// Returns the norm of the gradient sum of each part, in the order of parts(). Must be called
  /// after compute(). The host waits for the device.
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
  std::vector<int64_t> shard_firsts_;  // per partition: its first index in a rank's block sums
  std::vector<BlockSums::Segment> segments_;  // per part: where its block sums are in sums_
  bool has_tables_ = false;
  int64_t dense_blocks_ = 0;  // at least the number of blocks in the partitions' parameters
  int64_t table_blocks_ = 0;  // sums_ has memory for this many block sums of tables
  int64_t per_rank_ = 0;  // number of blocks in one rank's shards of all partitions
  int64_t blocks_ = 0;    // number of blocks of all segments
  // Buffers of bytes (u8) on the device of the ranks:
  Tensor sums_;          // f64 block sums: [ranks, per_rank_], then those of each table in turn
  Tensor table_;         // on a GPU: a copy of segments_
  Tensor partial_sums_;  // on a GPU: f64 scratch
};

}  // namespace tessera::optim
