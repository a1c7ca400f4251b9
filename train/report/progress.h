// Prints the progress of a run to stderr. On a terminal, rewrites one line in each step, with a
// bar, the loss, the speed, the peak memory and the time left. In piped output, prints a line after
// step 1 and after each tenth of the run, and usually at least one line per minute. A skipped step
// always has a separate line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/report/run_log.h"

namespace tessera::train {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `shows` is true on the one rank that prints. Speed is in `unit` ("tokens") per second. In
  /// piped output, lines should be at most `silence` apart. So a step prints a line if the time
  /// since the last line would reach `silence` by the end of the next step. The next step is
  /// assumed to take as long as this one. Lines are further apart only if a step takes longer than
  /// the step before it, or longer than `silence`. Here a step's time runs from the previous call
  /// of step() to this one, so it includes an evaluation between the two calls.
  Progress(int64_t steps, bool shows, std::string unit,
           Clock::duration silence = std::chrono::minutes(1));

  void step(const StepLine& step);
  void evaluation(int64_t step, const std::string& text);

 private:
  void clear_line();
  void rewrite_line(const StepLine& step, const std::string& left);

  int64_t steps_;
  int64_t first_ = -1;  // the first step, above 0 in a resumed run; -1 until this step has ended
  std::string unit_;    // unit of the speed, such as "tokens"
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

/// Returns a bar of `width` columns, of which the share `done` (0 to 1) is filled. In a UTF-8
/// locale the bar is exact to an eighth of a column, else to a column.
std::string bar(double done, int64_t width);

/// True if stdout and stderr are terminals. Under mpirun, this function checks mpirun's stdout and
/// stderr, because mpirun gives the program pipes or new terminals.
bool on_terminal();

struct Messages {
  bool shows = true;   // false: nothing is printed; true on one rank only
  /// true: progress and messages are not printed, except warnings and errors. The tables of memory
  /// and traffic after a run are printed only if measured and planned bytes differ.
  bool quiet = false;
  bool color = false;  // true: warnings and the progress bar have colours
};
/// Sets up the logger (spdlog), which prints messages to stderr without decoration.
void set_up_messages(const Messages& messages);
inline void set_up_messages(bool shows) { set_up_messages(Messages{.shows = shows}); }
/// True if set_up_messages allows messages that are neither warnings nor errors.
bool shows_messages();

}  // namespace tessera::train
