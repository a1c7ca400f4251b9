// Tests emulated NCCL on deferred streams, whose work is queued and runs later. A call runs when
// its stream reaches the call. A failed call makes its communicator fail, not its stream.
#include <chrono>
#include <thread>

#include "emulated/deferred.h"
#include "tests/emulated/launch.h"
#include "tests/emulated/nccl_world.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Stream {
  cudaStream_t stream = nullptr;
  Stream() {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~Stream() { CHECK(cudaStreamDestroy(stream) == cudaSuccess); }
  operator cudaStream_t() const { return stream; }
};

__global__ void fails_kernel() {
  if (threadIdx.x == 0) emulated::fail("a planted failure");
}

ncclResult_t sum(const Floats& buffer, size_t from, size_t to, ncclComm_t comm,
                 cudaStream_t stream) {
  return ncclAllReduce(buffer.at(from), buffer.at(to), 1, ncclFloat32, ncclSum, comm, stream);
}

// Calls body(comm, buffer, one, other) with a new communicator, six floats and two streams, once
// for each of four seeds of deferred streams.
template <class Body>
void for_four_seeds(const Body& body) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const StreamSeed streams(seed);
    const Comm comm;
    const Floats buffer(6);
    const Stream one, other;
    body(comm, buffer, one, other);
    meet();
  }
}

}  // namespace

TEST_CASE("a deferred call is done once its stream has been waited for, and not before") {
  const World world;
  for (const uint64_t seed : {1, 2}) {
    const StreamSeed streams(seed);
    const Comm comm;
    const Floats buffer(6);
    const Stream stream;
    meet();
    CHECK(sum(buffer, 1, 5, comm, stream) == ncclSuccess);
    CHECK(buffer[5] == 5);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(buffer[5] == static_cast<float>(world.size));
    meet();
  }
}

TEST_CASE("a stream that reads a deferred call's result must wait for its event") {
  const World world;
  const auto wrong = [&](bool with_event) {
    int found = 0;
    for_four_seeds([&](const Comm& comm, const Floats& buffer, cudaStream_t calls,
                       cudaStream_t copies) {
      cudaEvent_t event = nullptr;
      REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
      CHECK(sum(buffer, 1, 5, comm, calls) == ncclSuccess);
      REQUIRE(cudaEventRecord(event, calls) == cudaSuccess);
      if (with_event) REQUIRE(cudaStreamWaitEvent(copies, event) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(buffer.at(4), buffer.at(5), 4, cudaMemcpyDefault, copies) ==
              cudaSuccess);
      REQUIRE(cudaStreamSynchronize(copies) == cudaSuccess);
      if (buffer[4] != static_cast<float>(world.size)) ++found;
      REQUIRE(cudaEventDestroy(event) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    });
    return found;
  };
  CHECK(wrong(true) == 0);
  if (world.size > 1) CHECK(wrong(false) >= 2);
}

TEST_CASE("ranks that wait for their streams in different orders do not deadlock") {
  const World world;
  for (const uint64_t seed : {1, 2}) {
    const StreamSeed streams(seed, 20);
    const Comm first, second;
    const Floats buffer(6);
    const Stream one, other;
    for (int i = 0; i < 20; ++i) {
      CHECK(sum(buffer, 1, 2, first, one) == ncclSuccess);
      CHECK(sum(buffer, 1, 3, second, other) == ncclSuccess);
      // Even ranks wait first for the first communicator's call, odd ranks for the second's.
      const bool odd = world.rank % 2 == 1;
      CHECK(cudaStreamSynchronize(odd ? other : one) == cudaSuccess);
      CHECK(cudaStreamSynchronize(odd ? one : other) == cudaSuccess);
      CHECK(buffer[2] == static_cast<float>(world.size));
      CHECK(buffer[3] == static_cast<float>(world.size));
    }
    meet();
  }
}

TEST_CASE("the calls of a communicator keep their order across streams") {
  const World world;
  for_four_seeds([&](const Comm& comm, const Floats& buffer, cudaStream_t one, cudaStream_t other) {
    CHECK(sum(buffer, 1, 2, comm, one) == ncclSuccess);
    CHECK(sum(buffer, 2, 3, comm, other) == ncclSuccess);
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);
    CHECK(buffer[3] == static_cast<float>(world.size * world.size));
    CHECK(comm.failure() == ncclSuccess);
  });
}

TEST_CASE("launches of a graph keep their order with the other calls of its communicator") {
  const World world;
  for_four_seeds([&](const Comm& comm, const Floats& buffer, cudaStream_t one, cudaStream_t other) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(sum(buffer, 2, 3, comm, one) == ncclSuccess);
    REQUIRE(cudaStreamEndCapture(one, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
    CHECK(sum(buffer, 1, 2, comm, other) == ncclSuccess);
    CHECK(cudaGraphLaunch(exec, one) == cudaSuccess);
    CHECK(sum(buffer, 3, 4, comm, other) == ncclSuccess);
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);
    CHECK(buffer[4] == static_cast<float>(world.size * world.size * world.size));
    CHECK(comm.failure() == ncclSuccess);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  });
}

TEST_CASE("a group's calls wait for all their streams, and these streams wait for the calls") {
  const World world;
  if (world.size == 1) return;
  for_four_seeds([&](const Comm& comm, const Floats& buffer, cudaStream_t one, cudaStream_t other) {
    // The send must run after the first copy, which writes element 1. The last copy is on `other`,
    // but must run after the receive on `one`, which writes element 2.
    REQUIRE(cudaMemcpyAsync(buffer.at(1), buffer.at(5), 4, cudaMemcpyDefault, other) ==
            cudaSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclRecv(buffer.at(2), 1, ncclFloat32, world.before(), comm, one) == ncclSuccess);
    CHECK(ncclSend(buffer.at(1), 1, ncclFloat32, world.after(), comm, other) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    REQUIRE(cudaMemcpyAsync(buffer.at(3), buffer.at(2), 4, cudaMemcpyDefault, other) ==
            cudaSuccess);
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);
    CHECK(buffer[3] == 5);
  });
}

TEST_CASE("a deferred call that fails makes its communicator fail, but not its stream") {
  const World world;
  if (world.size == 1) return;
  const StreamSeed streams(2);
  const Comm comm;
  const Floats buffer(100);
  const Stream stream;
  const size_t count = world.last() ? 6 : 5;
  const auto own = static_cast<size_t>(world.rank) * count;
  CHECK(ncclAllGather(buffer.at(own), buffer.at(0), count, ncclFloat32, comm, stream) ==
        ncclSuccess);
  CHECK(comm.failure() == ncclSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(comm.failure() == ncclInvalidUsage);
  CHECK(sum(buffer, 1, 2, comm, stream) == ncclInvalidUsage);
  CHECK_THAT(reason(), ContainsSubstring("has failed before"));
  meet();
}

TEST_CASE("an abort ends deferred calls that wait for other ranks") {
  const World world;
  if (world.size == 1) return;
  const StreamSeed streams(1, 20);
  Comm comm;
  const Floats buffer(10);
  const Stream stream;
  if (world.rank == 0) {
    CHECK(sum(buffer, 1, 2, comm, stream) == ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the call begins meanwhile
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    comm.abort();
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  }
  meet();
}

// Under the address sanitizer, the call of rank 0 would end the process if its memory were freed.
TEST_CASE("memory that is freed after a failure stays while a call may write to it") {
  const World world;
  if (world.size == 1) return;
  const StreamSeed streams(1, 20);
  const Comm comm;
  const Stream calls, other;
  if (world.rank == 0) {
    {
      const Floats buffer(3);
      CHECK(sum(buffer, 1, 2, comm, calls) == ncclSuccess);
      int device = 0;
      REQUIRE(cudaGetDevice(&device) == cudaSuccess);
      while (!emulated::is_running(device)) std::this_thread::yield();  // until the call begins
      REQUIRE(launch({1, 32, 0, other}, fails_kernel) == cudaSuccess);
      CHECK(cudaStreamSynchronize(other) == cudaErrorLaunchFailure);
    }
    meet();
    emulated::set_stream_seed(1, 20);  // waits for the call, and clears the failure
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    CHECK(comm.failure() == ncclSuccess);
  } else {
    meet();
    const Floats buffer(3);
    CHECK(sum(buffer, 1, 2, comm, calls) == ncclSuccess);
    CHECK(cudaStreamSynchronize(calls) == cudaSuccess);
    CHECK(buffer[2] == static_cast<float>(world.size));
  }
  meet();
}
