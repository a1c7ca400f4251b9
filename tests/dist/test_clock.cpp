#include "dist/clock.h"
#include "tests/support/catch.h"

using namespace tessera;
using dist::ClockReading;
using dist::on_rank_0;

TEST_CASE("the offset to rank 0's clock is interpolated between two readings") {
  const ClockReading first{.at_ns = 1'000, .offset_ns = 50'000};
  const ClockReading last{.at_ns = 3'000, .offset_ns = 50'200};
  CHECK(on_rank_0(1'000, first, last) == 51'000);
  CHECK(on_rank_0(2'000, first, last) == 52'100);
  CHECK(on_rank_0(3'000, first, last) == 53'200);
  CHECK(on_rank_0(2'000, first, first) == 52'000);
}

TEST_CASE("times on rank 0's clock are exact to the nanosecond") {
  const int64_t late = int64_t{400} * 86'400 * 1'000'000'000 + 7;  // a host that runs for 400 days
  const ClockReading first{.at_ns = late - 1'000'000'000};
  const ClockReading last{.at_ns = late + 1'000'000'000};
  CHECK(on_rank_0(late, first, last) == late);
  // For another host's clock the result is exact, too, although the offset is large.
  const ClockReading other{.at_ns = late, .offset_ns = -late + 3};
  CHECK(on_rank_0(late + 11, other, other) == 14);
}
