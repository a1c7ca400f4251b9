// The results of Tessera's own optimizer, for comparison bit by bit. It is enough to run this
// optimizer on one rank, because its results have the same bits on any number of ranks and at any
// ZeRO stage. The checks require that the student's optimizer computes the same bits.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "course/lib/task.h"
#include "optim/zero_optimizer.h"

namespace course {

/// The training of the lessons: five steps of seven micro-batches. 2, 3 and 5 do not divide 7, so
/// on 2, 3 and 5 ranks some ranks have no micro-batch of their own in the last micro-step.
struct Training {
  int64_t steps = 5;
  Batch batch{.global = 14, .micro = 2};
  optim::AdamW rule{.learning_rate = 1e-2f, .weight_decay = 0.1f};
  int64_t bucket_bytes = 8192;
};

/// Returns the losses of ZeroOptimizer with parameters in `dtype`.
std::vector<float> reference_losses(const Training& training, DType dtype = DType::f32,
                                    optim::ZeroOptions options = {});

/// Returns a message about the first step in which `found` differs from `expected`, or an empty
/// text.
std::string difference(const std::vector<float>& found, const std::vector<float>& expected);

/// Returns the likely cause, to be added to a message, if a loss or a weight in `values` is NaN.
/// Otherwise returns an empty text.
std::string nan_hint(std::span<const float> values);

/// Resets the step numbers that the reference's optimizer has set for error messages. Errors of the
/// student's program would otherwise name a step of the reference.
void forget_steps();

}  // namespace course
