// Measures, for time limits, how long this process has waited for other processes, such as other
// ranks. A stop of this process itself counts as at most half a second.
//
//   AwakeTime waited;
//   while (!answered()) {
//     sleep_10_ms();
//     waited.look();
//     if (waited.seconds() > limit_s) ...
//   }
#pragma once

#include <algorithm>
#include <chrono>

namespace tessera {

class AwakeTime {
 public:
  static constexpr std::chrono::milliseconds longest_counted{500};

  /// Counts the time since the last look(), or since the construction if there was none. Counts at
  /// most half a second, because a longer time is taken as a stop of this process: the user may
  /// have stopped the job. So call look() more often than every half second.
  void look() {
    const auto now = Clock::now();
    counted_ += std::min<Clock::duration>(now - last_, longest_counted);
    last_ = now;
  }

  double seconds() const { return std::chrono::duration<double>(counted_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  Clock::duration counted_{};
};

}  // namespace tessera
