// The few values that a step ends with, where the ranks compute, and their way to the host: by an
// asynchronous copy into pinned memory, for which whoever asks for a step's result waits.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "core/cuda.h"
#include "core/memory.h"
#include "optim/kernels/step_scalars.h"

namespace tessera::optim {

/// A copy of a step's scalars that is under way to the host.
class FetchedScalars {
 public:
  /// Waits until they are there; then throws what kernels found wrong in their input.
  StepScalars get() const;
  bool ready() const { return !arrived_ || arrived_->passed(); }

 private:
  friend class StepValues;
  StepScalars here_;                     // on the CPU
  const StepScalars* pinned_ = nullptr;  // from a GPU, when the device has come to `arrived_`
  std::optional<cuda::Event> arrived_;
};

class StepValues {
 public:
  /// Steps whose values may be under way: one that runs, and the one before it, whose result the
  /// host looks at meanwhile.
  static constexpr int slots = 2;

  explicit StepValues(Device device);

  /// Where kernels write and read them: on the device.
  StepScalars* scalars();
  /// Starts their copy to the host, in the order of the current stream; takes the place of the
  /// copy `slots` times before.
  FetchedScalars fetch();
  /// Ends skipping, for what is launched from now on.
  void stop_skipping();

 private:
  Device device_;
  StepScalars here_;                       // on the CPU
  std::shared_ptr<Storage> there_;         // on a GPU
  std::shared_ptr<Storage> pinned_;        // StepScalars [slots]
  int next_ = 0;
};

}  // namespace tessera::optim
