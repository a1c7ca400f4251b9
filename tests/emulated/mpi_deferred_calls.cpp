// Tests the calls of communicators on deferred streams, whose work is queued and runs later. An
// input must live as long as queued work reads it. On a device that has failed, a destructor must
// be able to ask without an exception if a call is done.
#include <atomic>
#include <memory>
#include <thread>

#include "core/cuda.h"
#include "core/memory.h"
#include "dist/communicator.h"
#include "dist/nccl/cuda/flights.h"
#include "tests/emulated/launch.h"
#include "tests/emulated/nccl_world.h"

using namespace emulated_tests;
using namespace tessera;

namespace {

cudaStream_t stream_of(Device device) {
  return static_cast<cudaStream_t>(cuda::current_stream(device.index));
}

__global__ void fails_kernel() {
  if (threadIdx.x == 0) emulated::fail("a planted failure");
}

}  // namespace

// Receive queues a copy that reads this rank's own piece of the input. Receive calls CUDA directly,
// because in tests the copies of core/ wait until they are done.
TEST_CASE("an exchange over MPI holds its input until the work of Receive is done") {
  const emulated_tests::World world;
  const StreamSeed streams(1);
  const Device device = default_device();
  const int64_t elements = world.size * int64_t{256};
  const auto values = std::make_shared<Floats>(static_cast<size_t>(elements));
  const Floats arrived(1);
  const float expected = (*values)[static_cast<size_t>(world.rank) * 256 + 1];
  std::atomic<bool> dropped = false;
  std::atomic<bool> freed_early = false;
  const auto receive = [&](int source, int64_t, const Tensor& chunk) {
    if (source != world.rank) return;
    while (!dropped) std::this_thread::yield();
    (void)cudaMemcpyAsync(arrived.at(0), static_cast<const float*>(chunk.raw()) + 1, sizeof(float),
                          cudaMemcpyDefault, stream_of(device));
  };
  {
    const auto job = dist::staged_communicator(dist::mpi_communicator(), device.index);
    Tensor input = Tensor::unallocated({elements}, DType::f32);
    std::shared_ptr<void> memory(values->at(0),
                                 [&](void*) { freed_early = arrived[0] != expected; });
    input.attach(adopt(std::move(memory), input.bytes(), Category::communication, device), 0);
    const dist::Work work = job->exchange(input, world.size, receive, {});
    input = Tensor();
    dropped = true;
    work.wait();
    CHECK(arrived[0] == expected);
  }
  CHECK_FALSE(freed_early);
}

TEST_CASE("on a failed device, calls are done for destructors, and the watchdog gets the error") {
  {
    const StreamSeed streams(1);
    const Device device = default_device();
    cuda::use_device(device.index);
    dist::Flights flights(device.index);
    const auto flight = flights.add("all_gather", {});
    REQUIRE(launch({1, 32, 0, stream_of(device)}, fails_kernel) == cudaSuccess);
    flight->behind.emplace(device.index);
    flights.launched(*flight, nullptr);
    flights.wait(*flight);
    CHECK_FALSE(flights.done(*flight));
    REQUIRE(cudaStreamSynchronize(stream_of(device)) == cudaErrorLaunchFailure);
    CHECK(flights.done(*flight));
    CHECK(flights.awaited_done());
    CHECK_NOTHROW(flights.fail_unfinished(": ended"));
    CHECK(flight->error == nullptr);
    CHECK_THROWS_AS(flights.oldest(), Error);
  }
  (void)cudaGetLastError();  // the end of `streams` clears the failure, but not the last error
}
