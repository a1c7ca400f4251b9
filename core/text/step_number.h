// The numbers of steps. In calls and fields a step is an index from 0: micro_batches(0, ...),
// MicroBatch::step, StepReport::step. In everything that people read (the screen, the log, error
// messages, the last message of a rank) the first step is step 1. So "step 5" means the same step
// in all these texts, and after step 5, five steps are done.
#pragma once

#include <cstdint>

namespace tessera {

/// Returns the number that people read for the step with this index.
constexpr int64_t step_number(int64_t index) { return index + 1; }

}  // namespace tessera
