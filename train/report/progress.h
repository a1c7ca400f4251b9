// What a person sees while a run goes on. On a terminal one line, rewritten each step, with the
// time left; where output is piped, a line every tenth of the way. A step that is skipped has a
// line of its own. Everything goes to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/report/run_log.h"

namespace tessera::train {

class Progress {
 public:
  /// `shows` is true on the one rank that talks; speed is in `unit`, "tokens", a second.
  Progress(int64_t steps, bool shows, std::string unit);

  void step(const StepLine& step);
  void evaluation(int64_t step, const std::string& text);

 private:
  void clear_line();

  int64_t steps_;
  std::string unit_;  // "tokens"
  bool shows_;
  bool terminal_;
  bool line_open_ = false;
  std::chrono::steady_clock::time_point begin_;
};

/// "1:02:03", "4:05"
std::string duration_text(double seconds);

/// Whether a person watches: stdout and stderr are terminals. mpirun puts pipes and terminals of
/// its own between; then it is mpirun's that count.
bool on_terminal();

/// Messages to stderr, without colours or decoration, on the one rank that talks.
void set_up_messages(bool shows);

}  // namespace tessera::train
