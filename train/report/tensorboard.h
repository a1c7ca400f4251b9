// Writes the lines of a run's log as events for TensorBoard, during the run.
//
//   scalars     train/loss, train/grad_norm, ...; speed/step_ms, ...; eval/val_loss, eval/top1, ...
//   histograms  gradient_norms: the norms of all parameters' gradients
//               gradient_norms/attn.c_attn.weight, ...: the norms of one kind of parameter, a value
//               for each layer
//   text        run: the settings in the lines of the header and of resumes
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "train/report/event_file.h"

namespace tessera::train {

class TensorBoardWriter {
 public:
  /// Creates an event file in `folder` for a run that resumes after `finished` steps (0 for a new
  /// run). TensorBoard then drops the values of later steps in other files of the folder. Throws
  /// InputError if the file cannot be created.
  TensorBoardWriter(const std::string& folder, int64_t finished) : file_(folder, finished + 1) {}

  const std::string& path() const { return file_.path(); }

  /// True once a write has failed, so that events are missing at the end of the file.
  bool failed() const { return file_.failed(); }

  /// Adds a line of the log, as text or parsed.
  void add(const std::string& line);
  void add(const nlohmann::ordered_json& line);

 private:
  EventFile file_;
};

}  // namespace tessera::train
