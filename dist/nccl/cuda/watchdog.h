// Ends a job in which a collective does not finish. Without a watchdog, a GPU would wait for its
// peer for ever, without an error.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dist/nccl/cuda/flights.h"

namespace tessera::dist {

/// The inputs of a watchdog. The watchdog's thread calls `oldest` and `failure`.
struct Watched {
  int device = 0;
  double timeout_s = 0;
  std::function<std::optional<Flights::UnderWay>()> oldest;
  std::function<std::string()> failure;  // error text of the transport; empty if there is no error
};

/// Ends the job on all ranks if the transport has failed, or if one call has been the oldest call
/// in flight for longer than the timeout. Time in which this process itself is stopped does not
/// count. Before the job ends, prints an error with the call's name. Does not abort the calls in
/// flight: an aborted call looks like a finished call. So the rank would go on although data have
/// not arrived, and could log a step or write a checkpoint with wrong values.
class Watchdog {
 public:
  explicit Watchdog(Watched watched);
  /// Stops watching. Does not end the job.
  ~Watchdog();

 private:
  void watch();

  const Watched watched_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;  // last: the thread uses all members above
};

}  // namespace tessera::dist
