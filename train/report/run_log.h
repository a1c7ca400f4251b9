// The log of a run: one JSON object per line. Each line is written immediately, so that the log can
// be followed during the run.
//
//   {"type":"header", ...}                                    the full configuration
//   {"type":"step","step":1,"loss":5.54,"grad_norm":2.1,"lr":1e-05,"tokens_per_s":...}
//   {"type":"norms","step":50,"norms":{...}}                  the norm of each parameter's gradient
//   {"type":"eval","step":250,"val_loss":2.4}                 an evaluation after 250 steps
//   {"type":"timeline","step":3, ...}                         the events of one step (timeline.h)
//   {"type":"summary", ...}                                   memory and traffic
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json_line.h"
#include "core/version.h"
#include "dist/bootstrap.h"

namespace tessera::train {

class RunLog {
 public:
  /// Opens the log. With an empty path, nothing is written. If `finished` is set, continues the log
  /// after that many steps: removes the first line of a later step or of a summary, and all lines
  /// after it, because the run will write them again. Also removes damaged lines at the end. If
  /// `finished` is not set, replaces an older file. Nothing is removed before the first write(): if
  /// a run is refused before it begins, the older log stays. Throws InputError
  ///  - if the file cannot be opened;
  ///  - if it is neither a regular file nor a character device, such as a terminal;
  ///  - if it is the log of another run that still writes to it;
  ///  - if `finished` is set and a valid line follows a damaged line. Lines after the first line to
  ///    be removed are not read.
  /// In the first case, throws Error if the reason is the machine (fail_to_open).
  explicit RunLog(const std::string& path, std::optional<int64_t> finished = std::nullopt);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// True if the file has no line yet. Lines that the first write() will remove do not count.
  bool empty() const { return bytes_ == 0; }

  /// Calls `follower` with the text of each later line, even if there is no file or the line cannot
  /// be written to the file.
  void follow(std::function<void(const std::string& line)> follower) {
    followers_.push_back(std::move(follower));
  }

  /// Appends a line. The first call also removes the lines that are not kept, and throws as
  /// fail_to_open does if this fails. If writing fails, as on a full disk, a regular file keeps no
  /// part of the line, and the run continues. Only the first failure prints a warning. Later calls
  /// still try to write their lines. If the first line of a file could not be written, later calls
  /// try to write it before their own line, because a log without its header cannot be read.
  void write(const JsonObject& line);

 private:
  void find_kept_lines(int64_t finished);
  void cut();
  void lose_line(int error);

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;      // size of all kept and written lines
  bool must_cut_ = false;  // true: the file may be longer than `bytes_`; write() truncates it
  bool warned_ = false;
  std::string unwritten_header_;  // the file's first line, if writing it failed; else empty
  std::vector<std::function<void(const std::string&)>> followers_;
};

/// A step as the log and the terminal show it.
struct StepLine {
  int64_t step = 0;  // counted from 0; log and terminal count from 1
  float loss = 0;
  float grad_norm = 0;
  float lr = 0;
  std::optional<float> loss_scale = std::nullopt;  // set if losses are scaled
  bool skipped = false;                            // true if the step had no update
  double samples_per_s = 0;                        // tokens, images or other units per second
  double step_ms = 0;
  double comm_exposed_ms = 0;
  double checkpoint_wait_ms = 0;  // time the update waited for a checkpoint to read the state
};

/// Starts a header line with the program's name and Tessera's version.
JsonObject header_begin(const std::string& program);
/// Adds a job's ranks, threads, device and communicator to a header line. Also adds the CPU's
/// instruction set or the GPU's name.
void add_job(JsonObject& header, const dist::World& world);
/// Returns the log line of a step. `unit` is the unit of the speed: "tokens" gives tokens_per_s.
JsonObject step_line(const StepLine& step, const std::string& unit);
JsonObject eval_line(int64_t step, float val_loss);
/// Returns the line with the norm of each parameter's gradient before clipping, by name.
JsonObject norms_line(int64_t step, const std::map<std::string, float>& norms);

}  // namespace tessera::train
