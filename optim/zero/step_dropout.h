// Sets dropout_state() (core/random.h) for the steps of one optimizer. Several optimizers can train
// on one thread, but a dropout does not know which optimizer trains its layer. So dropout throws
// while micro-batches of two optimizers are open on its thread.
#pragma once

#include <memory>

#include "core/random.h"

namespace tessera::optim {

/// Forwards on a thread draw the masks of the micro-batch that is open on this thread. If none is
/// open, they draw the masks of the micro-batch that was finished last. Micro-batches of ended
/// steps do not count. These rules hold only if the thread that began a micro-batch also finishes
/// it and ends its step, because calls on other threads do not change this thread's
/// dropout_state().
class StepDropout {
 public:
  StepDropout() = default;
  /// Ends a step that was not finished, so that later forwards do not draw its masks.
  ~StepDropout() { end_step(); }
  StepDropout(const StepDropout&) = delete;
  StepDropout& operator=(const StepDropout&) = delete;

  /// Opens a micro-batch on the calling thread.
  void begin(const DropoutState& state);
  /// Finishes the micro-batch, after its backward or skip.
  void end_micro_batch();
  /// Ends the step: forwards no longer draw its masks. Micro-batches of other optimizers are not
  /// affected. Does nothing if no step has begun.
  void end_step();

 private:
  std::shared_ptr<struct BegunStep> begun_;  // null between steps
};

}  // namespace tessera::optim
