#include "optim/zero/end_of_step/step_values.h"

#include <cstddef>

namespace tessera::optim {

StepScalars FetchedScalars::get() const {
  if (!arrived_) return here_;
  // The host waits for the end of this step's reduction on the device: it is about to log the
  // values, or to decide by them.
  arrived_->synchronize();
  return *pinned_;
}

StepValues::StepValues(Device device) : device_(device) {
  if (device.is_cpu()) return;
  constexpr Category category = Category::communication;
  there_ = allocate(sizeof(StepScalars), category, device);
  pinned_ = allocate_pinned(slots * int64_t{sizeof(StepScalars)}, category);
  stop_skipping();  // end_step() reads the flag before it first writes it
}

StepScalars* StepValues::scalars() {
  return there_ ? static_cast<StepScalars*>(there_->data()) : &here_;
}

FetchedScalars StepValues::fetch() {
  FetchedScalars fetched;
  if (device_.is_cpu()) {
    fetched.here_ = here_;
    return fetched;
  }
  // The slot's last copy was read: ZeroEngine::launch allows at most `slots` steps in flight.
  StepScalars* const slot = static_cast<StepScalars*>(pinned_->data()) + next_;
  next_ = (next_ + 1) % slots;
  cuda::copy(device_.index, slot, there_->data(), sizeof(StepScalars));
  fetched.pinned_ = slot;
  fetched.arrived_.emplace(device_.index);
  return fetched;
}

void StepValues::stop_skipping() {
  if (device_.is_cpu()) {
    here_.skip = 0;
  } else {
    // In stream order: steps that were launched before still see the flag.
    cuda::zero(device_.index, &scalars()->skip, sizeof(StepScalars::skip));
  }
}

}  // namespace tessera::optim
