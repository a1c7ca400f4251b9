// The scalars that the end of a step computes for the update, such as clip factor and skip flag.
#pragma once

#include <cstdint>

namespace tessera {

/// Plain data on the ranks' device, which runs the end of a step and, without offload, the update.
/// The host reads a copy.
struct StepScalars {
  double square_sum = 0;     // sum of squares of the gradient sums, before scaling
  float loss = 0;            // loss of the global batch
  float norm = 0;            // norm of the gradient, before clipping
  float gradient_scale = 1;  // factor on the gradient sums in the update
  int32_t non_finite = -1;   // the first micro-batch whose loss is not finite, or -1
  int32_t skip = 0;          // 1: the update changes nothing
};

}  // namespace tessera
