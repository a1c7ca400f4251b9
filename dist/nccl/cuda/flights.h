// Tracks calls whose work is on a stream. Keeps the buffers of a call alive until the call's work
// is done or another stream waits for this work. Makes other streams wait for calls, and finds the
// oldest call in flight. Calls finish in the order in which they were made.
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

/// One call. Its communicator runs `body`, then sets `behind` and calls Flights::launched.
struct Flight {
  int64_t number = 0;
  std::string name;                   // "all_gather of parameters, bucket 3"
  std::function<int64_t()> body;      // holds the buffers; kept until the work is done or awaited
  std::optional<cuda::Event> behind;  // recorded after the call's work; none if the launch failed
  bool is_launched = false;
  std::exception_ptr error;

  /// True once the call's work is done. Throws if the device has failed.
  bool passed() const { return is_launched && (!behind || behind->passed()); }
  /// Like passed(), but returns true instead of throwing if the device has failed.
  bool over() const { return is_launched && (!behind || behind->over()); }
};

/// Shared by a communicator, its Work objects and its watchdog, which may use different threads.
class Flights {
 public:
  explicit Flights(int device) : device_(device) {}

  std::shared_ptr<Flight> add(std::string name, std::function<int64_t()> body);
  void launched(Flight& flight, std::exception_ptr error);

  /// Makes the current stream wait for the call's work; neither the host nor another stream waits.
  /// Rethrows the call's error. Releases the buffers of this call and of earlier calls. If a buffer
  /// was allocated on the current stream, its memory is freed in the order of this stream, and so
  /// after the work of these calls.
  void wait(Flight& flight);
  void wait_for_all();
  /// True once the call's work is done or the call has failed. If the device has failed, true for
  /// every launched call: destructors call done(), so it must not throw.
  bool done(const Flight& flight) const;
  /// True once the work of all calls that were passed to wait() is done, or the device has failed.
  bool awaited_done() const;

  /// Forgets the calls whose work on the stream is done, and releases their buffers.
  void collect();
  /// Makes every unfinished call fail; the error text is the call's name followed by `why`. To be
  /// called before aborting the calls, because an aborted call looks like a finished call.
  void fail_unfinished(const std::string& why);
  /// Forgets all calls, and releases their buffers. The stream must be idle.
  void clear();

  struct UnderWay {
    int64_t number;
    std::string name;
  };
  /// Throws if the device has failed, so that the watchdog ends the job.
  std::optional<UnderWay> oldest() const;

 private:
  bool done_locked(const Flight& flight) const;

  const int device_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Flight>> flights_;  // ascending numbers
  int64_t next_number_ = 0;
  int64_t awaited_number_ = -1;         // number of the latest call passed to wait(); -1: none
  std::optional<cuda::Event> awaited_;  // recorded after the work of that call
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
