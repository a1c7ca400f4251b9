// Sets dropout_state() (core/random.h) for the steps of one optimizer. Several optimizers can train
// on one thread, but a dropout does not know which optimizer trains its layer. So dropout throws
// while micro-batches of two optimizers are open on its thread.
#pragma once

#include <memory>

#include "core/random.h"

namespace tessera::optim {

/// Forwards on a thread draw the masks of the micro-batch that is open there. If none is open, they
/// draw the masks of the one that was finished last, until the step of that micro-batch ends.
class StepDropout {
 public:
  StepDropout() = default;
  ~StepDropout() { end_step(); }  // later forwards draw no masks of a step that was given up
  StepDropout(const StepDropout&) = delete;
  StepDropout& operator=(const StepDropout&) = delete;

  /// Opens a micro-batch on the calling thread.
  void begin(const DropoutState& state);
  /// Finishes the micro-batch, after its backward or skip.
  void end_micro_batch();
  /// Does nothing if no step has begun. Other optimizers' micro-batches keep their states.
  void end_step();

 private:
  std::shared_ptr<struct BegunStep> begun_;  // null between steps
};

}  // namespace tessera::optim
