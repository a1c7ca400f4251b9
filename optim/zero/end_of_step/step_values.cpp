#include "optim/zero/end_of_step/step_values.h"

#include <cstddef>

namespace tessera::optim {

StepScalars FetchedScalars::get() const {
  if (!arrived_) return on_host_;
  // The host waits until the device has computed this step's values, because the caller is about to
  // report them or to decide about the update.
  arrived_->synchronize();
  return *pinned_;
}

StepValues::StepValues(Device device) : device_(device) {
  if (device.is_cpu()) return;
  constexpr Category category = Category::communication;
  on_device_ = allocate(sizeof(StepScalars), category, device);
  pinned_ = allocate_pinned(slots * int64_t{sizeof(StepScalars)}, category);
  stop_skipping();  // the first end_step() reads the flag, so it must be initialised
}

StepScalars* StepValues::scalars() {
  return on_device_ ? static_cast<StepScalars*>(on_device_->data()) : &on_host_;
}

FetchedScalars StepValues::fetch(int64_t number) {
  FetchedScalars fetched;
  if (device_.is_cpu()) {
    fetched.on_host_ = on_host_;
    return fetched;
  }
  StepScalars* const slot = static_cast<StepScalars*>(pinned_->data()) + number % slots;
  cuda::copy(device_.index, slot, on_device_->data(), sizeof(StepScalars));
  fetched.pinned_ = slot;
  fetched.arrived_.emplace(device_.index);
  return fetched;
}

void StepValues::stop_skipping() {
  if (device_.is_cpu()) {
    on_host_.skip = 0;
  } else {
    // The flag is cleared in stream order, so steps that were launched earlier still see it set.
    cuda::zero(device_.index, &scalars()->skip, sizeof(StepScalars::skip));
  }
}

}  // namespace tessera::optim
