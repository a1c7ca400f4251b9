// A StepScalars in the memory of the device that a test runs on.
#pragma once

#include "optim/kernels/step_scalars.h"

namespace tessera::test {

class DeviceScalars {
 public:
  explicit DeviceScalars(const StepScalars& values = {})
      : memory_(Tensor::empty({sizeof(StepScalars)}, DType::u8)) {
    memory_.values<uint8_t>();  // waits for the device, so that the host may write
    *get() = values;
  }
  StepScalars* get() const { return static_cast<StepScalars*>(memory_.raw()); }
  StepScalars values() const {
    memory_.values<uint8_t>();  // waits for the device
    return *get();
  }

 private:
  Tensor memory_;
};

}  // namespace tessera::test
