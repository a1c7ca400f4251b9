// Launchers for the end of a step. They compute the scalars for the update. Their inputs are the
// losses and the sums of squares of all ranks. All pointers are to memory of the context's device.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "optim/kernels/step_scalars.h"

namespace tessera {

/// The sums of squares of the gradient: one sum for each block of 256 elements. The segments tell
/// where in `values` the sum of a block is. Blocks are numbered from 0 over all parameters, in
/// parameter order. In a row-sparse table, only blocks with rows that the step has looked up are
/// numbered. `values` has the sums of a table one after the other, not by shards. So the table's
/// segment has one shard of unlimited size: shard_blocks is the largest int64, and shard_first is
/// the index in `values` of the table's first sum.
struct BlockSums {
  struct Segment {              // one parameter; all shards of its bucket are equally large
    int64_t begin = 0;          // the parameter's first block, numbered over all parameters
    int64_t first = 0;          // index of the parameter's first block in the bucket
    int64_t shard_blocks = 0;   // number of blocks in a rank's shard of the bucket
    int64_t shard_first = 0;    // index of the shard's first block in the block sums of one rank

    /// Returns the index in `values` of the sum of block `number`. The block must be in this
    /// segment.
    constexpr int64_t place(int64_t number, int64_t per_rank) const {
      const int64_t block = first + number - begin;
      return block / shard_blocks * per_rank + shard_first + block % shard_blocks;
    }
  };
  const double* values = nullptr;     // [ranks * per_rank], then block sums of row-sparse tables
  int64_t per_rank = 0;               // number of block sums of one rank, without tables
  const Segment* segments = nullptr;  // ascending, from block 0 on, without gaps
  int64_t segment_count = 0;
  int64_t blocks = 0;                 // number of blocks of all segments
  double* partial_sums = nullptr;     // scratch for CUDA: one per blocks_per_partial_sum blocks
  static constexpr int64_t blocks_per_partial_sum = 1024;
};

/// The inputs of end_step besides the losses and square_sum.
struct StepEnd {
  int64_t ranks = 1;
  int64_t micro_steps = 1;
  int64_t micro_batches = 1;
  float share = 1;            // weight of one micro-batch in the loss
  float correction = 1;       // factor on the loss that compensates for micro-batches without data
  float gradient_factor = 1;  // factor that turns a gradient sum into the gradient
  float clip = 0;             // maximum of the norm; 0: no clipping
  bool keep_skipping = true;  // true: once skip is 1, it stays 1 until the host clears it
};

/// scalars->square_sum = the sum of all block sums. The order of additions depends only on the
/// blocks' numbers: one after the other on the CPU, in a tree on CUDA.
TESSERA_KERNEL(add_block_sums, StepScalars* scalars, const BlockSums& sums)
/// Computes the remaining scalars from square_sum and losses. losses is f32 [ranks * micro_steps].
/// In micro-step j, rank r has micro-batch m = j * ranks + r. The loss of m is
/// losses[r * micro_steps + j], or 0 if m had no data. The losses are added one by one in order of
/// m. skip becomes 1 if loss or norm is not finite, or if skip was 1 before and keep_skipping is
/// true. Otherwise skip becomes 0.
TESSERA_KERNEL(end_step, StepScalars* scalars, const Tensor& losses, const StepEnd& end)

}  // namespace tessera
