// What a person sees while a run goes on. On a terminal one line, rewritten each step, with the
// time left; where output is piped, a line every tenth of the way, and at least one a minute. A
// step that is skipped has a line of its own. Everything goes to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/report/run_log.h"

namespace tessera::train {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `shows` is true on the one rank that talks; speed is in `unit`, "tokens", a second. Piped
  /// lines are at most `silence` apart, or a step where that is longer.
  Progress(int64_t steps, bool shows, std::string unit,
           Clock::duration silence = std::chrono::minutes(1));

  void step(const StepLine& step);
  void evaluation(int64_t step, const std::string& text);

 private:
  void clear_line();

  int64_t steps_;
  std::string unit_;  // "tokens"
  bool shows_;
  bool terminal_;
  bool line_open_ = false;
  Clock::duration silence_;
  Clock::time_point begin_;
  Clock::time_point last_step_;
  Clock::time_point last_line_;
};

/// "1:02:03", "4:05"
std::string duration_text(double seconds);

/// Whether a person watches: stdout and stderr are terminals. mpirun puts pipes and terminals of
/// its own between; then it is mpirun's that count.
bool on_terminal();

/// Messages to stderr, without colours or decoration, on the one rank that talks.
void set_up_messages(bool shows);

}  // namespace tessera::train
