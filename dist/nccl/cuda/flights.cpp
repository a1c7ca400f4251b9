#include "dist/nccl/cuda/flights.h"

#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera::dist {

std::shared_ptr<Flight> Flights::add(std::string name, std::function<int64_t()> body) {
  auto flight = std::make_shared<Flight>();
  flight->name = std::move(name);
  flight->body = std::move(body);
  const std::lock_guard lock(mutex_);
  flight->number = next_number_++;
  flights_.push_back(flight);
  return flight;
}

void Flights::launched(Flight& flight, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  flight.is_launched = true;
  flight.error = std::move(error);
}

void Flights::wait(Flight& flight) {
  // Declared before the lock, so that the bodies are destroyed after the lock has been released.
  std::vector<std::function<int64_t()>> let_go;
  const std::lock_guard lock(mutex_);
  if (flight.error) std::rethrow_exception(flight.error);
  // The caller's stream waits for the communication stream, because the next kernels of the
  // caller's stream read the result. The host does not wait, and launches these kernels meanwhile.
  flight.behind->wait();
  if (flight.number > awaited_number_) {
    awaited_number_ = flight.number;
    awaited_ = flight.behind;
  }
  for (const auto& earlier : flights_) {
    if (earlier->number > flight.number) break;
    let_go.push_back(std::exchange(earlier->body, nullptr));
  }
}

void Flights::wait_for_all() {
  std::shared_ptr<Flight> last;
  {
    const std::lock_guard lock(mutex_);
    if (!flights_.empty()) last = flights_.back();
  }
  if (last) wait(*last);
}

bool Flights::done_locked(const Flight& flight) const {
  return flight.is_launched && (flight.error || flight.over());
}

bool Flights::done(const Flight& flight) const {
  const std::lock_guard lock(mutex_);
  return done_locked(flight);
}

bool Flights::awaited_done() const {
  const std::lock_guard lock(mutex_);
  return !awaited_ || awaited_->over();
}

void Flights::collect() {
  std::vector<std::function<int64_t()>> let_go;
  const std::lock_guard lock(mutex_);
  // Tests passed() instead of done(), because done() is also true for a call that fail_unfinished()
  // has marked as failed, and the work of such a call may still use its buffers. passed() has a
  // similar flaw: it is true for a call whose launch failed, even if a part of its work still
  // runs. But after a failed launch, the communicator does not call collect() again.
  while (!flights_.empty() && flights_.front()->passed()) {
    let_go.push_back(std::exchange(flights_.front()->body, nullptr));
    flights_.pop_front();
  }
}

void Flights::fail_unfinished(const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (const auto& flight : flights_) {
    if (!done_locked(*flight)) flight->error = std::make_exception_ptr(Error(flight->name + why));
  }
}

void Flights::clear() {
  std::vector<std::function<int64_t()>> let_go;
  const std::lock_guard lock(mutex_);
  for (const auto& flight : flights_) let_go.push_back(std::exchange(flight->body, nullptr));
  flights_.clear();
}

std::optional<Flights::UnderWay> Flights::oldest() const {
  const std::lock_guard lock(mutex_);
  for (const auto& flight : flights_) {
    const bool done = flight->is_launched && (flight->error || flight->passed());
    if (!done) return UnderWay{flight->number, flight->name};
  }
  return {};
}

}  // namespace tessera::dist
