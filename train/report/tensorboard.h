// Writes the lines of a run's log as events for TensorBoard, during the run or after it.
//
//   scalars     train/loss, train/grad_norm, ...; speed/step_ms, ...; eval/val_loss, eval/top1, ...
//   histograms  gradient_norms: the norms of all parameters' gradients
//               gradient_norms/attn.c_attn.weight, ...: the gradient norms of one kind of
//               parameter, one value per layer
//   text        run: the settings in the header, and those in each `resume` line
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "train/report/event_file.h"

namespace tessera::train {

class TensorBoardWriter {
 public:
  /// Creates an event file in `folder` for a run that resumes after `finished` steps (0 for a new
  /// run). TensorBoard then drops the values of later steps in other files of the folder. For a new
  /// run, TensorBoard drops all values in these files. For `time`, see set_time. Throws as
  /// EventFile's constructor does.
  TensorBoardWriter(const std::string& folder, int64_t finished, std::optional<double> time = {})
      : file_(folder, finished == 0 ? 0 : finished + 1, time) {}

  const std::string& path() const { return file_.path(); }

  /// True if a write has failed. After a failure, no later event is written.
  bool failed() const { return file_.failed(); }

  /// Sets the time of the lines that are added from now on, in seconds since 1970. If no time is
  /// set, as during a run, the time of a line is when it is added.
  void set_time(double time) { file_.set_time(time); }

  /// Adds a line of the log, as text or parsed.
  void add(const std::string& line);
  void add(const nlohmann::ordered_json& line);

 private:
  EventFile file_;
};

}  // namespace tessera::train
