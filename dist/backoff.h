// Lets a thread wait for other ranks without taking a core from compute threads.
#pragma once

#include <time.h>

#include <algorithm>

#include "core/awake_time.h"
#include "core/trace.h"

namespace tessera::dist {

/// For the first 30 us of a wait, pause() returns immediately: in the middle of a transfer, a peer
/// answers within 30 us. After 30 us the peer is probably computing. From then on, pause() sleeps:
/// 5 us at first, twice as long each time, at most 100 us. Polling with these pauses takes about
/// 3 % of a core.
class Backoff {
 public:
  void reset() {
    idle_since_ns_ = 0;
    slept_ns_ = 0;
    sleep_ns_ = shortest_sleep_ns;
  }

  void pause() {
    const int64_t now = trace::now_ns();
    if (idle_since_ns_ == 0) idle_since_ns_ = now;
    if (now - idle_since_ns_ < spin_ns) return;
    const timespec time{0, sleep_ns_};
    nanosleep(&time, nullptr);
    slept_ns_ += std::min(trace::now_ns() - now, longest_counted_ns);
    sleep_ns_ = std::min(2 * sleep_ns_, longest_sleep_ns);
  }

  /// Returns the nanoseconds that pause() has slept since the last reset. As in AwakeTime, a sleep
  /// counts as half a second at most: if it was longer, this process itself was stopped.
  int64_t slept_ns() const { return slept_ns_; }

 private:
  static constexpr int64_t spin_ns = 30'000;
  static constexpr int64_t longest_counted_ns =
      std::chrono::nanoseconds(AwakeTime::longest_counted).count();
  static constexpr long shortest_sleep_ns = 5'000;
  static constexpr long longest_sleep_ns = 100'000;

  int64_t idle_since_ns_ = 0;
  int64_t slept_ns_ = 0;
  long sleep_ns_ = shortest_sleep_ns;
};

}  // namespace tessera::dist
