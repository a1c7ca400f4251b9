// Ends a job in which a collective does not finish: a GPU waits for a peer without an error and
// without an end.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dist/nccl/cuda/flights.h"

namespace tessera::dist {

/// What a watchdog looks at, from its own thread.
struct Watched {
  int device = 0;
  double timeout_s = 0;
  std::function<std::optional<Flights::UnderWay>()> oldest;
  std::function<std::string()> failure;  // of the transport, empty where there is none
  std::function<void()> abort;           // ends what is under way
};

/// When the oldest call under way has been that for longer than the timeout, or the transport has
/// failed, it says so with the call's name, aborts, and ends the job on all ranks.
class Watchdog {
 public:
  explicit Watchdog(Watched watched);
  /// Stops watching; ends nothing.
  ~Watchdog();

 private:
  void watch();
  [[noreturn]] void end(const std::string& why);

  const Watched watched_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tessera::dist
