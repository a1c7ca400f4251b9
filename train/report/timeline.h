// The timeline of one step on up to 16 ranks, as a line of the log. The recorded step is the third
// since the run was started or resumed, because caches and allocators are warm by then. If fewer
// than three steps are left, the recorded step is the last step.
#pragma once

#include <cstdint>
#include <optional>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"

namespace tessera::train {

/// The time of a recorded step, on this rank's clock (trace::now_ns).
struct TimelineWindow {
  int64_t step = 0;  // index, from 0
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // the end of the step, or the start of the next step if that was earlier
};

/// Records one step of a run. The events of the next step are recorded too, because all-gathers of
/// updated parameters may still run during the next step's forward pass.
class TimelineRecorder {
 public:
  /// `step` is the step to record, or -1 for none.
  explicit TimelineRecorder(int64_t step) : step_(step) {}

  /// Must be called before a step is launched.
  void launch(int64_t step);
  /// Must be called when the result of a step is known.
  void ended(int64_t step);
  /// Must be called after the last step.
  void end();

  const std::optional<TimelineWindow>& window() const { return window_; }

 private:
  int64_t step_;
  bool enabled_ = false;  // true: this object has enabled tracing, and will disable it
  std::optional<TimelineWindow> window_;
};

/// Gathers the recorded events of the first 16 ranks. Returns the line of the log (docs/formats.md)
/// on rank 0, and an empty object on other ranks. Collective.
JsonObject timeline_line(const TimelineWindow& window, const dist::World& world);

}  // namespace tessera::train
