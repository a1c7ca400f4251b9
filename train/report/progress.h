// The progress of a run for a person to watch. On a terminal it is one line with the time left,
// rewritten each step. In piped output it is a line after each tenth of the run, and at least one
// per minute. A skipped step has a line of its own. Everything goes to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/report/run_log.h"

namespace tessera::train {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `shows` is true on the one rank that prints. Speed is in `unit` ("tokens") per second. Piped
  /// lines are at most `silence` apart, or one step if a step takes longer.
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

/// True if stdout and stderr are terminals. mpirun puts its own pipes and terminals in between;
/// then those of mpirun itself count.
bool on_terminal();

/// Sends messages to stderr, without colours or decoration, on the one rank that prints.
void set_up_messages(bool shows);

}  // namespace tessera::train
