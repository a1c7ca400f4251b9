#include "dist/traffic.h"

namespace tessera::dist {

std::string_view traffic_name(Traffic purpose) {
  constexpr std::string_view names[] = {"gradients", "parameters", "norms",
                                        "losses",    "flags",      "other"};
  static_assert(std::size(names) == traffic_count);
  return names[static_cast<size_t>(purpose)];
}

std::string_view collective_name(Collective collective) {
  constexpr std::string_view names[] = {"reduce_scatter", "exchange",  "all_gather",
                                        "all_reduce",     "broadcast", "barrier"};
  static_assert(std::size(names) == collective_count);
  return names[static_cast<size_t>(collective)];
}

void TrafficLedger::add(Collective collective, Traffic purpose, int64_t bytes_sent) {
  const std::lock_guard lock(mutex_);
  bytes_[static_cast<size_t>(purpose)] += bytes_sent;
  calls_[static_cast<size_t>(collective)] += 1;
}

int64_t TrafficLedger::bytes_sent(Traffic purpose) const {
  const std::lock_guard lock(mutex_);
  return bytes_[static_cast<size_t>(purpose)];
}

int64_t TrafficLedger::bytes_sent() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const int64_t bytes : bytes_) sum += bytes;
  return sum;
}

int64_t TrafficLedger::calls(Collective collective) const {
  const std::lock_guard lock(mutex_);
  return calls_[static_cast<size_t>(collective)];
}

void TrafficLedger::reset() {
  const std::lock_guard lock(mutex_);
  bytes_.fill(0);
  calls_.fill(0);
}

}  // namespace tessera::dist
