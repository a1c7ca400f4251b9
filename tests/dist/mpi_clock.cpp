#include "core/trace.h"
#include "core/trace_clock.h"
#include "dist/clock.h"
#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;

namespace {

/// Shifts this rank's clock by `ns`, as if this rank's host had booted `ns` nanoseconds earlier.
class Skew {
 public:
  explicit Skew(int64_t ns) { trace::skew_clock(ns); }
  ~Skew() { trace::skew_clock(0); }
};

}  // namespace

TEST_CASE("clocks of ranks are compared to within the round trip of a message") {
  const World world{.communicator = nullptr, .rank = job().rank(), .size = job().size()};
  // The skew is half an hour per rank, in alternating directions.
  const int64_t skew = int64_t{1'800'000'000'000} * world.rank * (world.rank % 2 == 0 ? -1 : 1);
  for (const int64_t own : {skew, int64_t{0}, -skew}) {
    const Skew skewed(own);
    const ClockReading reading = compare_clocks(world);
    CHECK(reading.error_ns >= 0);
    // All ranks of a test are on one host, so the offset must be the negative skew.
    CHECK(std::abs(reading.offset_ns + own) <= reading.error_ns);
    if (own == 0) CHECK(reading.offset_ns == 0);
    CHECK(reading.at_ns <= trace::now_ns());
    for (const std::string& on_rank : gather_text(job(), std::to_string(reading.rank_0_ns))) {
      CHECK(on_rank == std::to_string(reading.rank_0_ns));
    }
  }
}
