#include "optim/zero/step_dropout.h"

#include <atomic>
#include <vector>

namespace tessera::optim {

struct BegunStep {
  explicit BegunStep(const DropoutState& of_micro_batch) : state(of_micro_batch) {}

  const DropoutState state;          // of the step's most recent micro-batch
  // True until that micro-batch is finished. Atomic, because another thread may finish it.
  std::atomic<bool> is_open = true;
};

namespace {

// The unfinished steps whose most recent micro-batch began on this thread. When this thread
// finishes such a micro-batch, the step's entry moves to the end of the list. Other threads cannot
// change this list: if another thread ends a step, begins the step's next micro-batch, or destroys
// the optimizer, the step's entry stays in the list, but has expired.
thread_local std::vector<std::weak_ptr<BegunStep>> begun_here;

/// Removes the step from this thread's list. Returns false if the step's most recent micro-batch
/// began on another thread, because the step is then in the list of that thread.
bool remove(const std::shared_ptr<BegunStep>& step) {
  return std::erase_if(begun_here, [&](const auto& entry) { return entry.lock() == step; }) > 0;
}

DropoutState state_here() {
  DropoutState state;
  int open = 0;
  for (const auto& entry : begun_here) {
    const std::shared_ptr<BegunStep> step = entry.lock();
    if (step == nullptr) continue;
    const bool is_open = step->is_open;
    if (is_open || open == 0) state = step->state;
    open += is_open ? 1 : 0;
  }
  return open > 1 ? DropoutState{.is_ambiguous = true} : state;
}

}  // namespace

void StepDropout::begin(const DropoutState& state) {
  begun_ = std::make_shared<BegunStep>(state);  // the entry of the previous micro-batch expires
  std::erase_if(begun_here, [](const auto& entry) { return entry.expired(); });
  begun_here.push_back(begun_);
  dropout_state() = state_here();
}

void StepDropout::end_micro_batch() {
  if (begun_ == nullptr) return;  // ZeroOptimizer::begin() threw before StepDropout::begin()
  begun_->is_open = false;
  if (!remove(begun_)) return;
  begun_here.push_back(begun_);
  dropout_state() = state_here();
}

void StepDropout::end_step() {
  const bool was_here = begun_ != nullptr && remove(begun_);
  begun_ = nullptr;
  if (was_here) dropout_state() = state_here();
}

}  // namespace tessera::optim
