// What Tessera's own optimizer computes, for comparison bit by bit. It runs on one rank: its bits
// depend neither on the number of ranks nor on the stage, and the checks hold the student's to
// that.
#pragma once

#include <string>
#include <vector>

#include "course/lib/task.h"
#include "optim/zero_optimizer.h"

namespace course {

/// How the lessons train: five steps of seven micro-batches. No number of ranks but 1 divides 7, so
/// on 2, 3 and 5 ranks some have no micro-batch of their own in the last micro-step.
struct Training {
  int64_t steps = 5;
  Batch batch{.global = 14, .micro = 2};
  optim::AdamW rule{.learning_rate = 1e-2f, .weight_decay = 0.1f};
  int64_t bucket_bytes = 8192;
};

/// The losses of ZeroOptimizer, of parameters in `dtype`.
std::vector<float> reference_losses(const Training& training, DType dtype = DType::f32,
                                    optim::ZeroOptions options = {});

/// Says at which step `found` first differs from `expected`; an empty text: nowhere.
std::string difference(const std::vector<float>& found, const std::vector<float>& expected);

/// Forgets the steps of a reference, so that errors of the student's program do not speak of them.
void forget_steps();

}  // namespace course
