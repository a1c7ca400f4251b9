// The launchers of a step's end: from all ranks' losses and sums of squares to what the update
// reads. All pointers are to memory of the context's device.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "optim/kernels/step_scalars.h"

namespace tessera {

/// The block sums of squares of all ranks, and where those of each parameter are. In parameter
/// order the blocks of all parameters are numbered from 0.
struct BlockSums {
  struct Segment {              // a parameter, in a bucket of which each rank has as many blocks
    int64_t begin = 0;          // its first block's number
    int64_t first = 0;          // its first block's place in the bucket
    int64_t shard_blocks = 0;   // of the bucket in a rank's sums,
    int64_t shard_first = 0;    // which begin there

    /// Where the sum of block `number` is, a block of this segment.
    constexpr int64_t place(int64_t number, int64_t per_rank) const {
      const int64_t block = first + number - begin;
      return block / shard_blocks * per_rank + shard_first + block % shard_blocks;
    }
  };
  const double* values = nullptr;     // [ranks * per_rank]
  int64_t per_rank = 0;
  const Segment* segments = nullptr;  // ascending, the first from 0 on, without gaps
  int64_t segment_count = 0;
  int64_t blocks = 0;                 // of all segments
  double* partial_sums = nullptr;     // scratch that CUDA wants: one for each of so many blocks
  static constexpr int64_t blocks_per_partial_sum = 1024;
};

/// How the end of a step makes its scalars.
struct StepEnd {
  int64_t ranks = 1;
  int64_t micro_steps = 1;
  int64_t micro_batches = 1;
  float share = 1;            // of a micro-batch in the loss
  float correction = 1;       // of the loss, for micro-batches without data
  float gradient_factor = 1;  // of a gradient in its sum
  float clip = 0;             // maximum of the norm; 0: no clipping
  bool keep_skipping = true;  // once something was not finite, until `skip` is set to 0
};

/// scalars->square_sum = the sum of all block sums, in an order that depends on their number alone:
/// on the CPU one after the other, on CUDA a tree.
TESSERA_KERNEL(add_block_sums, StepScalars* scalars, const BlockSums& sums)
/// The rest of the scalars, from square_sum and losses, f32 [ranks * micro_steps], of which
/// micro-batch m = micro-step * ranks + rank has losses[rank * micro_steps + micro-step]; those
/// without data are zeros. loss is the left fold in order of m. skip = 1 where loss or norm is not
/// finite, or where it was 1 before and keep_skipping says so.
TESSERA_KERNEL(end_step, StepScalars* scalars, const Tensor& losses, const StepEnd& end)

}  // namespace tessera
