// How steps are counted. In calls and fields a step is an index from 0, as loops have it:
// micro_batches(0, ...), MicroBatch::step, StepReport::step. In all that people read, the screen,
// the log, errors and last words, the first step is step 1, so that "step 5" of any of them is the
// same one, and 5 are done behind it.
#pragma once

#include <cstdint>

namespace tessera {

/// The number of the step with an index.
constexpr int64_t step_number(int64_t index) { return index + 1; }

}  // namespace tessera
