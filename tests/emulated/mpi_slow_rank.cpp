// Tests that a barrier over NCCL waits for a rank on which NCCL's calls end later. A rank that has
// left the barrier may destroy its communicator. If it left before the barrier had ended on another
// rank, it could drop data that are still on the way to that rank.
#include <mpi.h>

#include <chrono>

#include "emulated/dist/control.h"
#include "tests/support/catch.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace {

// All ranks of a test are on one host, so they read the same clock.
int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

TEST_CASE("a barrier over NCCL ends after it has ended on the slowest rank") {
  const dist::World world = job_world();
  if (world.size == 1) return;
  const int last = world.size - 1;
  emulated::set_nccl_delay_ms(world.rank == last ? 300 : 0);
  int64_t begin_of_last = now_ms();
  world.communicator->barrier();
  const int64_t end = now_ms();
  emulated::set_nccl_delay_ms(0);
  MPI_Bcast(&begin_of_last, 1, MPI_INT64_T, last, MPI_COMM_WORLD);
  CHECK(end - begin_of_last >= 300);
}

}  // namespace
}  // namespace tessera::test
