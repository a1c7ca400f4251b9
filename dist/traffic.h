// Counts the bytes that a rank has sent, separately for each purpose. These bytes are payloads and,
// over MPI, Tessera's own headers. The headers of MPI and TCP do not count.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

namespace tessera::dist {

/// The purpose of a call. `headers` counts the call headers (dist/mpi/call_header.h) of all calls
/// except those with the purpose `other`.
enum class Traffic : uint8_t {
  gradients,
  parameters,
  rows,  // row-sparse tables: indices of rows, and row counts
  norms,
  losses,
  flags,
  statistics,
  saves,  // weights that are gathered to be saved
  headers,
  other,
};
inline constexpr int traffic_count = 10;
std::string_view traffic_name(Traffic purpose);

/// The kind of a call.
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
  /// Counts a call. Header bytes count as Traffic::headers; if `purpose` is Traffic::other, they
  /// count as Traffic::other.
  void add(Collective collective, Traffic purpose, int64_t bytes_sent, int64_t header_bytes = 0);
  int64_t bytes_sent(Traffic purpose) const;
  int64_t bytes_sent() const;
  int64_t calls(Collective collective) const;
  void reset();

  struct Counts {
    std::array<int64_t, traffic_count> bytes{};
    std::array<int64_t, collective_count> calls{};
  };
  /// Returns the counts of the calls that `body` makes, without adding the counts to the ledger.
  /// Used while a graph is captured: each launch of the graph then adds the counts with add().
  /// Calls of other threads would be counted as calls of `body`. So no other thread may make calls
  /// meanwhile (Communicator::capture).
  Counts of(const std::function<void()>& body);
  void add(const Counts& more);

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

}  // namespace tessera::dist
