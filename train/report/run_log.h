// The log of a run: one JSON object per line, written as the run goes, so that it can be followed.
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
  /// Without a path nothing is written. Throws InputError if the file cannot be opened, or is
  /// neither a regular file nor a device, such as a terminal. `finished`: continues the log of a
  /// run after so many steps. Lines of later steps and of a summary are removed, because they will
  /// be written again. Without it an older file is replaced.
  explicit RunLog(const std::string& path, std::optional<int64_t> finished = std::nullopt);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// True if the file has no line yet.
  bool empty() const { return bytes_ == 0; }

  /// If a line cannot be written, for instance on a full disk, all of it is left out of the log and
  /// the run goes on. The first such failure is a warning; later lines are tried again.
  void write(const JsonObject& line);

 private:
  void cut_after(int64_t finished);
  void lose_line(int error);

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;  // of whole lines
  bool warned_ = false;
};

/// A step as the log and the terminal show it.
struct StepLine {
  int64_t step = 0;  // counted from 0; log and terminal count from 1
  float loss = 0;
  float grad_norm = 0;
  float lr = 0;
  std::optional<float> loss_scale = std::nullopt;  // if losses are scaled
  bool skipped = false;                            // its gradients overflowed
  double samples_per_s = 0;  // tokens, or images
  double step_ms = 0;
  double comm_exposed_ms = 0;
  double checkpoint_wait_ms = 0;  // until a checkpoint had read what the update changes
};

/// Begins a header: the program that writes it and Tessera's version.
JsonObject header_begin(const std::string& program);
/// Ranks, threads, device and communicator of a job.
void add_job(JsonObject& header, const dist::World& world);
/// `unit` is the unit of the speed: "tokens" gives tokens_per_s.
JsonObject step_line(const StepLine& step, const std::string& unit);
JsonObject eval_line(int64_t step, float val_loss);

}  // namespace tessera::train
