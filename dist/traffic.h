// What a rank has sent, to the byte, by purpose. Payload, and Tessera's own
// headers over MPI; not those of MPI or TCP.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

namespace tessera::dist {

/// Why bytes move. `headers` are what ranks tell each other of the calls for the purposes before
/// it.
enum class Traffic : uint8_t {
  gradients,
  parameters,
  norms,
  losses,
  flags,
  statistics,
  saves,  // weights that are written while a run goes on
  headers,
  other,
};
inline constexpr int traffic_count = 9;
std::string_view traffic_name(Traffic purpose);

/// Which call moves them.
enum class Collective : uint8_t {
  reduce_scatter,
  exchange,
  all_gather,
  all_reduce,
  broadcast,
  barrier,
  exchange_v,
  all_gather_v,
  send_receive,
  split,
};
inline constexpr int collective_count = 10;
std::string_view collective_name(Collective collective);

/// Counts of one rank; safe to use from any thread.
class TrafficLedger {
 public:
  /// A call; its headers count as Traffic::headers, or as ::other where its data does.
  void add(Collective collective, Traffic purpose, int64_t bytes_sent, int64_t header_bytes = 0);
  int64_t bytes_sent(Traffic purpose) const;
  int64_t bytes_sent() const;
  int64_t calls(Collective collective) const;
  void reset();

  struct Counts {
    std::array<int64_t, traffic_count> bytes{};
    std::array<int64_t, collective_count> calls{};
  };
  /// What `body` counts, which is not counted here: it was made to be repeated.
  Counts of(const std::function<void()>& body);
  void add(const Counts& more);

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

}  // namespace tessera::dist
