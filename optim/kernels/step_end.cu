// add_block_sums and end_step on CUDA, with the formulas of step_end.cpp. add_block_sums takes the
// sums in parameter order (BlockSums), and adds them in a tree: first within each thread block,
// then over the thread blocks. So the bits do not depend on ranks, stages or buckets.
#include <algorithm>
#include <cmath>

#include "core/cuda/kernel.cuh"
#include "optim/kernels/step_end.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;
constexpr int64_t per_block = BlockSums::blocks_per_partial_sum;

/// Returns, by binary search, the index of the segment that contains block `number` (a block of 256
/// elements).
__device__ int64_t segment_of(const BlockSums& sums, int64_t number) {
  int64_t first = 0;
  int64_t last = sums.segment_count;
  while (last - first > 1) {
    const int64_t middle = (first + last) / 2;
    (sums.segments[middle].begin <= number ? first : last) = middle;
  }
  return first;
}

__global__ void __launch_bounds__(threads) partial_sums_kernel(BlockSums sums) {
  double sum = 0;
  const int64_t first = blockIdx.x * per_block;
  for (int64_t i = threadIdx.x; i < per_block && first + i < sums.blocks; i += threads) {
    const int64_t number = first + i;
    const BlockSums::Segment segment = sums.segments[segment_of(sums, number)];
    sum += sums.values[segment.place(number, sums.per_rank)];
  }
  sum = block_sum_once<threads>(sum);
  if (threadIdx.x == 0) sums.partial_sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads)
    square_sum_kernel(StepScalars* scalars, const double* partial_sums, int64_t count) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += threads) sum += partial_sums[i];
  sum = block_sum_once<threads>(sum);
  if (threadIdx.x == 0) scalars->square_sum = sum;
}

/// Runs as one thread block. All threads fetch losses, because one thread alone would wait for
/// memory at each loss.
__global__ void __launch_bounds__(threads)
    end_step_kernel(StepScalars* scalars, const float* losses, StepEnd end) {
  __shared__ float fetched[threads];
  float total = 0;
  int32_t non_finite = -1;
  for (int64_t begin = 0; begin < end.micro_batches; begin += threads) {
    const int64_t count = std::min<int64_t>(threads, end.micro_batches - begin);
    const int64_t own = begin + threadIdx.x;
    __syncthreads();  // the losses of the previous round have been added
    if (threadIdx.x < count) {
      fetched[threadIdx.x] = losses[own % end.ranks * end.micro_steps + own / end.ranks];
    }
    __syncthreads();
    for (int64_t i = 0; i < count && threadIdx.x == 0; ++i) {
      total = fmaf(end.share, fetched[i], total);
      if (!std::isfinite(fetched[i]) && non_finite < 0) {
        non_finite = static_cast<int32_t>(begin + i);
      }
    }
  }
  if (threadIdx.x != 0) return;
  StepScalars result = *scalars;
  result.loss = total * end.correction;
  result.norm = static_cast<float>(sqrt(result.square_sum) * end.gradient_factor);
  const float clip = end.clip > 0 ? fminf(1.0f, end.clip / (result.norm + 1e-6f)) : 1.0f;
  result.gradient_scale = clip * end.gradient_factor;
  result.non_finite = non_finite;
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.norm);
  const bool keeps = end.keep_skipping && result.skip != 0;
  result.skip = !finite || keeps ? 1 : 0;
  *scalars = result;
}

}  // namespace

void add_block_sums(const Context& context, StepScalars* scalars, const BlockSums& sums) {
  const unsigned blocks = blocks_for(sums.blocks, per_block);
  if (blocks > 0) {
    launch(context, "add_block_sums", {blocks, threads}, partial_sums_kernel, sums);
  }
  launch(context, "add_block_sums", {1, threads}, square_sum_kernel, scalars, sums.partial_sums,
         blocks);
}

void end_step(const Context& context, StepScalars* scalars, const Tensor& losses,
              const StepEnd& end) {
  launch(context, "end_step", {1, threads}, end_step_kernel, scalars, losses.data<float>(), end);
}

}  // namespace tessera::cuda
