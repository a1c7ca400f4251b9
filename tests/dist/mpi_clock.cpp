#include "core/trace.h"
#include "core/trace_clock.h"
#include "dist/clock.h"
#include "dist/mesh.h"
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

World world() {
  World result;
  result.rank = job().rank();
  result.size = job().size();
  result.comm_timeout_s = 60;
  // The shared_ptr does not own the job's communicator, which later tests need.
  result.communicator = std::shared_ptr<Communicator>(&job(), [](Communicator*) {});
  return result;
}

void check_clocks(const World& world) {
  // The skew is half an hour per rank, in alternating directions. Rank 0 has none.
  const int64_t skew = int64_t{1'800'000'000'000} * world.rank * (world.rank % 2 == 0 ? -1 : 1);
  for (const int64_t own : {skew, int64_t{0}, -skew}) {
    const Skew skewed(own);
    const ClockReading reading = compare_clocks(world);
    CHECK(reading.error_ns >= 0);
    // All ranks of a test are on one host, so the offset must be the negative skew.
    CHECK(std::abs(reading.offset_ns + own) <= reading.error_ns);
    if (own == 0) CHECK(reading.offset_ns == 0);
    CHECK(reading.at_ns <= trace::now_ns());
    const std::string rank_0 = std::to_string(reading.rank_0_ns);
    for (const std::string& on_rank : gather_text(*world.communicator, rank_0)) {
      CHECK(on_rank == rank_0);
    }
  }
}

}  // namespace

TEST_CASE("clocks of ranks are compared to within the round trip of a message") {
  check_clocks(world());
}

TEST_CASE("clocks are compared within a group, whose ranks have other numbers in the job") {
  const int ranks = job().size();
  const int rank = job().rank();
  SECTION("two interleaved groups") {
    check_clocks(world_of_group(world(), job().split(rank % 2, rank, "interleaved")));
  }
  SECTION("groups of different sizes, one in descending order") {
    check_clocks(world_of_group(world(), job().split(rank == 0 ? 0 : 1, -rank, "uneven")));
  }
  SECTION("a group without rank 0, which is not asked to take part") {
    const auto group = job().split(rank == 0 ? -1 : 0, rank, "without 0");
    if (group != nullptr) check_clocks(world_of_group(world(), group));
  }
  SECTION("an axis of a mesh, whose groups share ranks with those of the other axis") {
    if (ranks % 2 != 0) return;
    const Mesh mesh(world(), {{"data", ranks / 2}, {"run", 2}});
    check_clocks(mesh.group("data"));
    check_clocks(mesh.group("run"));
  }
}
