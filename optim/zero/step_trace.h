// Steps and micro-batches as spans of the trace: "step 3" contains "micro-batch 5", which contains
// "forward" and "backward". Steps have the numbers that users see (core/text/step_number.h).
// Micro-batches have the numbers of MicroBatch::index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/text/step_number.h"
#include "core/trace.h"

namespace tessera::optim {

class StepTrace {
 public:
  void begin_step() { step_ns_ = now(); }
  void begin_micro_batch() {
    micro_batch_ns_ = now();
    forward_ns_ = now();
  }
  /// Ends the span of the forward.
  void begin_backward() {
    if (forward_ns_ != 0) end("forward", std::exchange(forward_ns_, 0));
  }
  /// `index` is nullopt if the rank has no micro-batch of its own. Such a rank repeats the last
  /// micro-batch of the step.
  void end_micro_batch(std::optional<int64_t> index) {
    if (micro_batch_ns_ == 0) return;
    end(index ? fmt::format("micro-batch {}", *index) : "no micro-batch",
        std::exchange(micro_batch_ns_, 0));
  }
  void end_step(int64_t step) {
    if (step_ns_ != 0) end(fmt::format("step {}", step_number(step)), std::exchange(step_ns_, 0));
  }

 private:
  static int64_t now() { return trace::enabled() ? trace::now_ns() : 0; }
  static void end(std::string name, int64_t begin_ns) {
    if (!trace::enabled()) return;
    trace::record({std::move(name), trace::Track::compute, begin_ns, trace::now_ns()});
  }

  // Start times of the open spans; 0 if the span is not open, or was opened while tracing was off.
  int64_t step_ns_ = 0;
  int64_t micro_batch_ns_ = 0;
  int64_t forward_ns_ = 0;
};

}  // namespace tessera::optim
