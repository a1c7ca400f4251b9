// Helpers of the tests of collectives. Values are small integers, so that sums are exact and tests
// can compare with ==.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>

#include "dist/communicator.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

namespace tessera::dist {

/// True if new_communicator() makes NCCL communicators: on CUDA, unless TESSERA_TEST_COMM is mpi.
inline bool over_nccl() {
  const char* const name = std::getenv("TESSERA_TEST_COMM");
  return !test::on_cpu() && !(name != nullptr && std::string(name) == "mpi");
}

/// Options with small chunks of NCCL's staging, so that few elements give many chunks.
inline constexpr NcclOptions nccl_options{.chunk_bytes = 64 * 1024};

/// Makes a communicator of all ranks of the job, for memory of the test device. All ranks must call
/// this function.
inline std::shared_ptr<Communicator> new_communicator() {
  if (over_nccl()) return nccl_communicator(default_device().index, nccl_options);
  auto host = mpi_communicator();
  if (test::on_cpu()) return host;
  return staged_communicator(std::move(host), default_device().index);
}

/// Returns the communicator that the whole program shares.
inline Communicator& job() {
  static const std::shared_ptr<Communicator> communicator = new_communicator();
  return *communicator;
}

/// Returns the value that rank `source` holds at `index`.
inline int64_t value_at(int64_t source, int64_t index) {
  return (7 * source + 3 * index) % 101 + 1;
}

inline int64_t sum_at(int64_t contributors, int64_t index) {
  int64_t sum = 0;
  for (int64_t source = 0; source < contributors; ++source) sum += value_at(source, index);
  return sum;
}

/// Returns a tensor with value_at(source, i) at i. Every dtype holds these small integers exactly.
template <class T = float>
Tensor filled(int64_t source, int64_t elements) {
  const Tensor x = Tensor::empty({elements}, dtype_of<T>);
  int64_t i = 0;
  for (T& value : x.values<T>()) value = static_cast<T>(value_at(source, i++));
  return x;
}

/// Returns the number of elements of `x` that differ from expected(index).
template <class T = float, class Expected>
int64_t differences(const Tensor& x, Expected&& expected) {
  int64_t count = 0;
  int64_t i = 0;
  for (const T value : x.values<T>()) count += value != static_cast<T>(expected(i++));
  return count;
}

/// Returns how many elements of T fit in a chunk of the job's staging. MPI's staging has two chunks
/// for each peer, and one more. A single rank has no staging, and gets the number for two ranks.
template <class T = float>
int64_t chunk_elements() {
  if (over_nccl()) return nccl_options.chunk_bytes / static_cast<int64_t>(sizeof(T));
  const int64_t ranks = std::max(job().size(), 2);
  return mpi_staging_bytes(ranks) / (2 * (ranks - 1) + 1) / static_cast<int64_t>(sizeof(T));
}

/// True if there are probably more ranks than cores. Tests then move less data.
inline bool many_ranks() { return job().size() > 8; }

/// Returns the sizes of pieces to test, in elements: 0, 1, 3, about a block (256 elements), 1000,
/// and half a chunk to more than two chunks. If `few` is set, returns fewer sizes.
template <class T = float>
std::vector<int64_t> piece_sizes(bool few = many_ranks()) {
  const int64_t chunk = chunk_elements<T>();
  if (few) return {0, 1, 255, 256, 1000, chunk + 1};
  return {0, 1, 3, 255, 256, 1000, chunk / 2, chunk - 1, chunk, chunk + 1, 2 * chunk + chunk / 3};
}

/// Returns the numbers of contributors to test with pieces of `piece` elements: all from 1 to
/// `ranks`. If `few` is set, or `piece` is at least 30,000, returns only `ranks` and half of it,
/// rounded up.
inline std::vector<int> contributor_counts(int ranks, int64_t piece, bool few = many_ranks()) {
  std::vector<int> counts;
  for (int n = 1; n <= ranks; ++n) {
    if ((piece < 30'000 && !few) || n == (ranks + 1) / 2 || n == ranks) counts.push_back(n);
  }
  return counts;
}

/// The traffic that the ledger of `communicator` has counted since this object was made.
class Counted {
 public:
  explicit Counted(Communicator& communicator) : traffic_(communicator.traffic()) {
    for (int p = 0; p < traffic_count; ++p) {
      bytes_.push_back(traffic_.bytes_sent(static_cast<Traffic>(p)));
    }
    for (int c = 0; c < collective_count; ++c) {
      calls_.push_back(traffic_.calls(static_cast<Collective>(c)));
    }
  }

  /// True if there was exactly one call, of `collective`, and nothing was sent except:
  ///   `bytes` bytes for `purpose`;
  ///   over MPI, a header of 32 bytes to each other rank.
  /// Headers count as Traffic::other if `purpose` is Traffic::other, else as Traffic::headers.
  bool only(Collective collective, Traffic purpose, int64_t bytes) const {
    const int64_t headers = over_nccl() ? 0 : 32 * (job().size() - 1);
    const Traffic of_headers = purpose == Traffic::other ? Traffic::other : Traffic::headers;
    bool equal = true;
    for (int p = 0; p < traffic_count; ++p) {
      const auto counted = traffic_.bytes_sent(static_cast<Traffic>(p));
      const int64_t expected = (p == static_cast<int>(purpose) ? bytes : 0) +
                               (p == static_cast<int>(of_headers) ? headers : 0);
      equal &= counted - bytes_[static_cast<size_t>(p)] == expected;
    }
    for (int c = 0; c < collective_count; ++c) {
      const auto counted = traffic_.calls(static_cast<Collective>(c));
      const int64_t expected = c == static_cast<int>(collective) ? 1 : 0;
      equal &= counted - calls_[static_cast<size_t>(c)] == expected;
    }
    return equal;
  }

 private:
  TrafficLedger& traffic_;
  std::vector<int64_t> bytes_;
  std::vector<int64_t> calls_;
};

}  // namespace tessera::dist
