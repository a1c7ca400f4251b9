// What a step's update reads of the step's end: the clip factor, and the skip flag.
#pragma once

#include <cstdint>

namespace tessera {

/// What the end of a step computes and its update reads, plain data that lives where both run: the
/// host knows it later, or never.
struct StepScalars {
  double square_sum = 0;     // of the sums of the gradients, before they are scaled
  float loss = 0;            // of the global batch
  float norm = 0;            // of the gradient, before clipping
  float gradient_scale = 1;  // what a sum of gradients is multiplied by in the update
  int32_t non_finite = -1;   // the first micro-batch whose loss is not finite
  int32_t skip = 0;          // 1: nothing is updated
};

}  // namespace tessera
