// Calls whose work is on a stream: what they hold until it is done, how others wait for it, and
// which is the oldest under way. Calls are done in the order in which they were made.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/cuda.h"
#include "dist/communicator.h"

namespace tessera::dist {

/// One call. Who made it runs `body`, sets `behind` after its work, and calls `launched`.
struct Flight {
  int64_t number = 0;
  std::string name;                   // "all_gather of parameters, bucket 3"
  std::function<int64_t()> body;      // what it captures lives until the work is done
  std::optional<cuda::Event> behind;  // none where its launch failed
  bool is_launched = false;
  std::exception_ptr error;

  bool passed() const { return is_launched && (!behind || behind->passed()); }
};

/// Shared by a communicator, its works and its watchdog, each on a thread of its own.
class Flights {
 public:
  explicit Flights(int device) : device_(device) {}

  std::shared_ptr<Flight> add(std::string name, std::function<int64_t()> body);
  void launched(Flight& flight, std::exception_ptr error);

  /// The current stream waits for the work; nobody else. Throws what the call threw. Lets go of
  /// what this call and those before it hold: it was allocated on the current stream, and goes
  /// back in its order.
  void wait(Flight& flight);
  void wait_for_all();
  bool done(const Flight& flight) const;

  /// Forgets the calls that are done.
  void collect();
  /// Forgets all; the calls that are not done fail with this text. The stream must be idle.
  void abandon(const std::string& why);

  struct UnderWay {
    int64_t number;
    std::string name;
  };
  std::optional<UnderWay> oldest() const;

 private:
  bool done_locked(const Flight& flight) const;

  const int device_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Flight>> flights_;  // ascending numbers
  int64_t next_number_ = 0;
};

class FlightWork : public Work::State {
 public:
  FlightWork(std::shared_ptr<Flights> flights, std::shared_ptr<Flight> flight)
      : flights_(std::move(flights)), flight_(std::move(flight)) {}
  void wait() override { flights_->wait(*flight_); }
  bool done() const override { return flights_->done(*flight_); }

 private:
  std::shared_ptr<Flights> flights_;
  std::shared_ptr<Flight> flight_;
};

}  // namespace tessera::dist
