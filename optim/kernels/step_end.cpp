// add_block_sums and end_step compute StepScalars. The step's update reads two of these scalars,
// gradient_scale and skip. The inputs are the sum of squares of each block of 256 elements of the
// gradient (block sum), and the loss l_m of each micro-batch m. No autograd operations wrap these
// launchers. step_end.h explains skip and the factors of StepEnd.
//   square_sum     = sum of all block sums, in parameter order
//   loss           = correction * (share * l_0 + share * l_1 + ...), added in order of micro-batch
//   norm           = sqrt(square_sum) * gradient_factor
//   gradient_scale = gradient_factor * min(1, clip / (norm + 1e-6)), as
//                    torch.nn.utils.clip_grad_norm_ defines it; without clipping: gradient_factor
#include <algorithm>
#include <cmath>
#include <span>

#include "core/cpu/vector_math.h"
#include "optim/kernels/step_end.h"

namespace tessera::cpu {

void add_block_sums(const Context&, StepScalars* scalars, const BlockSums& sums) {
  double total = 0;
  for (int64_t s = 0; s < sums.segment_count; ++s) {
    const BlockSums::Segment& segment = sums.segments[s];
    const int64_t end = s + 1 < sums.segment_count ? sums.segments[s + 1].begin : sums.blocks;
    for (int64_t number = segment.begin; number < end; ++number) {
      total += sums.values[segment.place(number, sums.per_rank)];
    }
  }
  scalars->square_sum = total;
}

void end_step(const Context&, StepScalars* scalars, const Tensor& losses, const StepEnd& end) {
  const float* const loss_of = losses.data<float>();
  float total = 0;
  scalars->non_finite = -1;
  for (int64_t m = 0; m < end.micro_batches; ++m) {
    const float loss = loss_of[m % end.ranks * end.micro_steps + m / end.ranks];
    total = multiply_add(end.share, loss, total);
    if (!std::isfinite(loss) && scalars->non_finite < 0) {
      scalars->non_finite = static_cast<int32_t>(m);
    }
  }
  scalars->loss = total * end.correction;
  scalars->norm = static_cast<float>(std::sqrt(scalars->square_sum) * end.gradient_factor);
  const float clip = end.clip > 0 ? std::min(1.0f, end.clip / (scalars->norm + 1e-6f)) : 1.0f;
  scalars->gradient_scale = clip * end.gradient_factor;
  const bool finite = std::isfinite(scalars->loss) && std::isfinite(scalars->norm);
  const bool keeps = end.keep_skipping && scalars->skip != 0;
  scalars->skip = !finite || keeps ? 1 : 0;
}

}  // namespace tessera::cpu
