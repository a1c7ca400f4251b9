#include "dist/traffic.h"

#include <utility>

namespace tessera::dist {

std::string_view traffic_name(Traffic purpose) {
  constexpr std::string_view names[] = {"gradients", "parameters", "rows",  "norms",   "losses",
                                        "flags",     "statistics", "saves", "headers", "other"};
  static_assert(std::size(names) == traffic_count);
  return names[static_cast<size_t>(purpose)];
}

std::string_view collective_name(Collective collective) {
  constexpr std::string_view names[] = {"reduce_scatter", "exchange",     "all_gather",
                                        "all_reduce",     "broadcast",    "barrier",
                                        "exchange_v",     "all_gather_v", "send_receive",
                                        "split"};
  static_assert(std::size(names) == collective_count);
  return names[static_cast<size_t>(collective)];
}

void TrafficLedger::add(Collective collective, Traffic purpose, int64_t bytes_sent,
                        int64_t header_bytes) {
  const Traffic headers = purpose == Traffic::other ? Traffic::other : Traffic::headers;
  const std::lock_guard lock(mutex_);
  counts_.bytes[static_cast<size_t>(headers)] += header_bytes;
  counts_.bytes[static_cast<size_t>(purpose)] += bytes_sent;
  counts_.calls[static_cast<size_t>(collective)] += 1;
}

int64_t TrafficLedger::bytes_sent(Traffic purpose) const {
  const std::lock_guard lock(mutex_);
  return counts_.bytes[static_cast<size_t>(purpose)];
}

int64_t TrafficLedger::bytes_sent() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const int64_t bytes : counts_.bytes) sum += bytes;
  return sum;
}

int64_t TrafficLedger::calls(Collective collective) const {
  const std::lock_guard lock(mutex_);
  return counts_.calls[static_cast<size_t>(collective)];
}

void TrafficLedger::reset() {
  const std::lock_guard lock(mutex_);
  counts_ = {};
}

TrafficLedger::Counts TrafficLedger::of(const std::function<void()>& body) {
  const auto exchange_counts = [this](const Counts& next) {
    const std::lock_guard lock(mutex_);
    return std::exchange(counts_, next);
  };
  const Counts before = exchange_counts({});
  try {
    body();
  } catch (...) {
    add(before);  // the calls that `body` made before the error stay in the ledger
    throw;
  }
  return exchange_counts(before);
}

void TrafficLedger::add(const Counts& more) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < more.bytes.size(); ++i) counts_.bytes[i] += more.bytes[i];
  for (size_t i = 0; i < more.calls.size(); ++i) counts_.calls[i] += more.calls[i];
}

}  // namespace tessera::dist
