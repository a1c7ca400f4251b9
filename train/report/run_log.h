// The log of a run: one JSON object a line, written as the run goes, so that it can be followed.
//
//   {"type":"header", ...}                                    the full configuration
//   {"type":"step","step":1,"loss":5.54,"grad_norm":2.1,"lr":1e-05,"tokens_per_s":...}
//   {"type":"eval","step":250,"val_loss":2.4}                 after 250 steps
//   {"type":"summary", ...}                                   memory and traffic
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/text/json_line.h"
#include "core/version.h"
#include "dist/bootstrap.h"

namespace tessera::train {

class RunLog {
 public:
  /// Without a path nothing is written. Throws InputError where the file cannot be opened, or is
  /// neither a regular file nor a device, such as a terminal.
  /// `finished`: the log of a run so far, of which lines after so many steps go, as do those of the
  /// summary; they will be written again. Without it an older file is replaced.
  explicit RunLog(const std::string& path, std::optional<int64_t> finished = std::nullopt);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Whether the file has no line yet.
  bool empty() const { return bytes_ == 0; }

  /// A line that cannot be written, as on a full disk, is missing from the log as a whole: a run is
  /// worth more than its log. The first such line is a warning; the next ones are tried again.
  void write(const JsonObject& line);

 private:
  void cut_after(int64_t finished);
  void lose_line(int error);

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;  // of whole lines
  bool warned_ = false;
};

/// What a step was, as the log and the terminal show it.
struct StepLine {
  int64_t step = 0;  // from 0; what is written counts from 1
  float loss = 0;
  float grad_norm = 0;
  float lr = 0;
  std::optional<float> loss_scale = std::nullopt;  // where losses are scaled
  bool skipped = false;                            // its gradients overflowed
  double samples_per_s = 0;  // tokens, or images
  double step_ms = 0;
  double comm_exposed_ms = 0;
  double checkpoint_wait_ms = 0;  // of the update, until a checkpoint has read what it changes
};

/// Begins a header: the program that writes it and Tessera's version.
JsonObject header_begin(const std::string& program);
/// Ranks, threads, device and communicator of a job.
void add_job(JsonObject& header, const dist::World& world);
/// `unit` is what is counted: "tokens" gives tokens_per_s.
JsonObject step_line(const StepLine& step, const std::string& unit);
JsonObject eval_line(int64_t step, float val_loss);

}  // namespace tessera::train
