// Holds a step's scalars on the ranks' device, and copies them to the host. A copy from a GPU goes
// into pinned memory and is asynchronous: only a caller that asks for the step's result waits for
// the copy.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/cuda.h"
#include "core/memory.h"
#include "optim/kernels/step_scalars.h"

namespace tessera::optim {

/// A copy of a step's scalars in flight to the host.
class FetchedScalars {
 public:
  /// Waits for the copy and returns it. Throws if a kernel before the copy has reported invalid
  /// input.
  StepScalars get() const;
  /// True if get() would not wait.
  bool ready() const { return !arrived_ || arrived_->passed(); }

 private:
  friend class StepValues;
  StepScalars on_host_;                  // the values, if ranks compute on the CPU
  const StepScalars* pinned_ = nullptr;  // on a GPU: the copy, valid once `arrived_` has passed
  std::optional<cuda::Event> arrived_;
};

class StepValues {
 public:
  /// How many steps may have values in flight at the same time: the step that runs and the step
  /// before it. The host reads the result of the earlier step while the later step runs.
  static constexpr int slots = 2;

  explicit StepValues(Device device);

  /// The scalars on the device, which kernels write and read.
  StepScalars* scalars();
  /// Starts, on the current stream, a copy of the scalars to the host. `number`: the number of the
  /// step's launch (ZeroEngine::launch). Overwrites earlier copies for the launches `number` and
  /// `number` - `slots`.
  FetchedScalars fetch(int64_t number);
  /// Clears StepScalars::skip, so that the device no longer skips the updates of steps that are
  /// launched from now on. On a GPU, steps that were launched earlier still see the flag set.
  void stop_skipping();

 private:
  Device device_;
  StepScalars on_host_;                 // the scalars, if ranks compute on the CPU
  std::shared_ptr<Storage> on_device_;  // the scalars, if ranks compute on a GPU
  std::shared_ptr<Storage> pinned_;     // on a GPU: copies for the host, StepScalars [slots]
};

}  // namespace tessera::optim
