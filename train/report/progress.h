// Prints the progress of a run to stderr. On a terminal this is one line with the time left,
// rewritten each step. In piped output there is a line after each tenth of the run, and at least
// one line per minute. A skipped step always has a separate line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/report/run_log.h"

namespace tessera::train {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `shows` is true on the one rank that prints. Speed is in `unit` ("tokens") per second. Lines
  /// of piped output are at most `silence` apart, or one step apart if a step takes longer.
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

/// Returns a duration as "1:02:03" or "4:05".
std::string duration_text(double seconds);

/// True if stdout and stderr are terminals. Under mpirun, returns true if mpirun's stdout and
/// stderr are terminals, because mpirun gives the program pipes or new terminals instead.
bool on_terminal();

/// Sets up the logger (spdlog). If `shows` is true, it prints messages to stderr, without colours
/// or decoration. If `shows` is false, it prints nothing. `shows` is true on one rank only.
void set_up_messages(bool shows);

}  // namespace tessera::train
