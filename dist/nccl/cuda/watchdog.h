// Ends a job in which a collective does not finish. Otherwise a GPU would wait for its peer for
// ever, without an error.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dist/nccl/cuda/flights.h"

namespace tessera::dist {

/// The inputs of a watchdog, which calls the functions from its own thread.
struct Watched {
  int device = 0;
  double timeout_s = 0;
  std::function<std::optional<Flights::UnderWay>()> oldest;
  std::function<std::string()> failure;  // error text of the transport; empty if there is no error
  std::function<void()> abort;           // aborts the calls in flight
};

/// Ends the job on all ranks if the transport has failed, or if the same call has been the oldest
/// in flight for longer than the timeout. Before that, prints an error with the call's name and
/// aborts the calls in flight.
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
