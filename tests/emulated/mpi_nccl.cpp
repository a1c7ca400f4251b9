// Tests that emulated NCCL finds violations of NCCL's contract. Also tests groups of calls,
// captured calls, aborts and registered memory. The tests of the NCCL communicator (tests/dist)
// check the results of the collectives.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/emulated/nccl_world.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a count that differs on one rank is an error on all, which names two ranks") {
  const World world;
  if (world.size == 1) return;
  const Comm comm;
  const Floats buffer(100);
  CHECK(gather(comm, buffer, 5) == ncclSuccess);
  CHECK(gather(comm, buffer, world.last() ? 6 : 5) == ncclInvalidUsage);
  const std::string five = " makes ncclAllGather of 5 ncclFloat32";
  const std::string six = " makes ncclAllGather of 6 ncclFloat32";
  const std::string last = "rank " + std::to_string(world.size - 1);
  CHECK(reason() == (world.last() ? last + six + ", rank 0" + five
                                  : "rank " + std::to_string(world.rank) + five + ", " + last +
                                        six));
  CHECK(comm.failure() == ncclInvalidUsage);
  CHECK(gather(comm, buffer, 5) == ncclInvalidUsage);
  CHECK_THAT(reason(), ContainsSubstring("has failed before"));
}

TEST_CASE("different collectives, or one with different arguments, are errors") {
  const World world;
  if (world.size == 1) return;
  const Floats buffer(100);
  float* const data = buffer.at(0);
  const bool odd = world.last();
  const int what = GENERATE(0, 1, 2, 3);
  INFO("case " << what);
  const Comm comm;
  ncclResult_t result = ncclSuccess;
  switch (what) {
    case 0:
      result = odd ? ncclBroadcast(data, data, 6, ncclFloat32, 0, comm, nullptr)
                   : ncclAllReduce(data, data, 6, ncclFloat32, ncclSum, comm, nullptr);
      break;
    case 1:
      result = ncclBroadcast(data, data, 6, ncclFloat32, odd ? 1 : 0, comm, nullptr);
      break;
    case 2:
      result = ncclAllReduce(data, data, 6, odd ? ncclInt64 : ncclFloat32, ncclSum, comm, nullptr);
      break;
    case 3:
      // The last rank sends, the other ranks broadcast.
      result = odd ? ncclSend(data, 6, ncclFloat32, 0, comm, nullptr)
                   : ncclBroadcast(data, data, 6, ncclFloat32, 0, comm, nullptr);
      break;
    default: FAIL("no such case");
  }
  if (what == 3 && world.rank > 0 && !odd) {
    CHECK(result == ncclRemoteError);  // the last rank has left the communicator
  } else {
    CHECK(result == ncclInvalidUsage);
  }
  meet();
}

TEST_CASE("sends in a group are matched with the receives in the peer's group") {
  const World world;
  if (world.size == 1) return;
  const Comm comm;
  const Floats sent(20);
  const Floats received(20);
  // Each rank sends 7 and then 2 elements to the rank after it, and receives as many from the rank
  // before it. With two ranks, the rank before and the rank after are the same.
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(sent.at(3), 7, ncclFloat32, world.after(), comm, nullptr) == ncclSuccess);
  CHECK(ncclSend(sent.at(10), 2, ncclFloat32, world.after(), comm, nullptr) == ncclSuccess);
  CHECK(ncclRecv(received.at(0), 7, ncclFloat32, world.before(), comm, nullptr) == ncclSuccess);
  CHECK(ncclRecv(received.at(7), 2, ncclFloat32, world.before(), comm, nullptr) == ncclSuccess);
  CHECK(ncclGroupEnd() == ncclSuccess);
  CHECK(received[0] == 3);
  CHECK(received[6] == 9);
  CHECK(received[7] == 10);
  CHECK(received[8] == 11);
  CHECK(received[9] == 9);  // unchanged
}

TEST_CASE("a send that no rank receives is an error after a timeout") {
  const World world;
  if (world.size == 1) return;
  const ShortPatience short_patience;
  const Comm comm;
  const Floats buffer(5);
  if (world.rank == 0) {
    CHECK(ncclSend(buffer.at(0), 5, ncclFloat32, 1, comm, nullptr) == ncclRemoteError);
    CHECK(reason() == "rank 0 has waited too long for rank 1 to meet its ncclSend of 5 "
                      "ncclFloat32 to rank 1");
  }
  meet();
}

TEST_CASE("a receive of another count than was sent is an error on both ranks") {
  const World world;
  if (world.size == 1) return;
  const Comm comm;
  const Floats buffer(10);
  if (world.rank == 0) {
    CHECK(ncclSend(buffer.at(0), 5, ncclFloat32, 1, comm, nullptr) == ncclInvalidUsage);
    CHECK(reason() == "rank 0 makes ncclSend of 5 ncclFloat32 to rank 1, rank 1 makes ncclRecv "
                      "of 6 ncclFloat32 from rank 0");
  }
  if (world.rank == 1) {
    CHECK(ncclRecv(buffer.at(0), 6, ncclFloat32, 0, comm, nullptr) == ncclInvalidUsage);
  }
  meet();
}

TEST_CASE("buffers must be device memory, and either apart or exactly in place") {
  const World world;
  const Floats buffer(100);
  const std::vector<float> host(100);
  const auto gather_from = [&](const float* from, size_t count) {
    return [&buffer, from, count](ncclComm_t comm) {
      return ncclAllGather(from, buffer.at(0), count, ncclFloat32, comm, nullptr);
    };
  };
  const auto own = static_cast<size_t>(world.rank) * 10;
  check_refused(gather_from(buffer.at(own + 1), 10), "overlap");
  check_refused(gather_from(host.data(), 10), "the send buffer is not device memory");
  check_refused(gather_from(nullptr, 10), "is null");
  check_refused(gather_from(buffer.at(own), 1000), "ends outside device memory");
  const auto scatter = [&](ncclComm_t comm) {
    return ncclReduceScatter(buffer.at(0), buffer.at(own + 1), 10, ncclFloat32, ncclSum, comm,
                             nullptr);
  };
  check_refused(scatter, "overlap");
  const auto reduce = [&](ncclComm_t comm) {
    return ncclAllReduce(buffer.at(0), buffer.at(1), 10, ncclFloat32, ncclSum, comm, nullptr);
  };
  check_refused(reduce, "overlap");
  CHECK(gather_from(buffer.at(own), 10)(Comm()) == ncclSuccess);
}

TEST_CASE("arguments that NCCL refuses, or that are not emulated, are errors") {
  const World world;
  const Floats buffer(10);
  float* const data = buffer.at(0);
  const auto broadcast = [&](ncclComm_t comm) {
    return ncclBroadcast(data, data, 1, ncclFloat32, world.size, comm, nullptr);
  };
  check_refused(broadcast, "ranks");
  const auto send = [&](ncclComm_t comm) {
    return ncclSend(data, 1, ncclFloat32, world.rank, comm, nullptr);
  };
  check_refused(send, "between a rank and itself");
  cudaStream_t gone = nullptr;
  REQUIRE(cudaStreamCreate(&gone) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(gone) == cudaSuccess);
  const auto reduce = [&](ncclDataType_t type, ncclRedOp_t reduction, cudaStream_t stream) {
    return [=](ncclComm_t comm) {
      return ncclAllReduce(data, data, 1, type, reduction, comm, stream);
    };
  };
  check_refused(reduce(ncclBfloat16, ncclSum, nullptr), "sums of this type are not emulated");
  check_refused(reduce(ncclFloat32, ncclMax, nullptr), "the reduction is not emulated");
  check_refused(reduce(ncclFloat32, ncclSum, gone), "no such stream");
  CHECK(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, nullptr, nullptr) ==
        ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);

  ncclComm_t other = nullptr;
  CHECK(ncclCommInitRank(&other, world.size + 1, {}, world.rank) == ncclInvalidArgument);
  ncclConfig_t config{};
  CHECK(ncclCommInitRankConfig(&other, world.size, {}, world.rank, &config) ==
        ncclInvalidArgument);
}

TEST_CASE("ranks that share a GPU are refused") {
  const World world;
  if (world.size == 1) return;
  int own = 0;
  REQUIRE(cudaGetDevice(&own) == cudaSuccess);
  REQUIRE(cudaSetDevice(world.last() ? 0 : own) == cudaSuccess);
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, world.size, {}, world.rank) == ncclInvalidUsage);
  const std::string last = std::to_string(world.size - 1);
  CHECK(reason() == "ncclCommInitRank: ranks 0 and " + last + " share a GPU");
  CHECK(cudaSetDevice(own) == cudaSuccess);
}

TEST_CASE("a refused call makes its whole group fail") {
  const World world;
  const Comm comm;
  const Floats buffer(10);
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(nullptr, 1, ncclFloat32, world.after(), comm, nullptr) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  CHECK(comm.failure() == ncclInvalidArgument);
}

TEST_CASE("each launch of a graph repeats the captured calls, on all ranks") {
  const World world;
  if (world.size == 1) return;
  const Comm comm;
  const Floats buffer(4);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(ncclAllReduce(buffer.at(0), buffer.at(1), 1, ncclFloat32, ncclSum, comm, stream) ==
        ncclSuccess);
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(buffer.at(0), 1, ncclFloat32, world.after(), comm, stream) == ncclSuccess);
  CHECK(ncclRecv(buffer.at(2), 1, ncclFloat32, world.before(), comm, stream) == ncclSuccess);
  CHECK(ncclGroupEnd() == ncclSuccess);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
  CHECK(buffer[1] == 1);
  for (const int factor : {1, 3}) {
    *buffer.at(0) = static_cast<float>(factor * (1 + world.rank));
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    CHECK(buffer[1] == static_cast<float>(factor * world.size * (world.size + 1) / 2));
    CHECK(buffer[2] == static_cast<float>(factor * (1 + world.before())));
    meet();  // waits, because other ranks may still read this rank's buffer
  }
  CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("an abort waits for graphs that have captured calls") {
  Comm comm;
  const Floats buffer(100);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(ncclAllReduce(buffer.at(0), buffer.at(0), 1, ncclFloat32, ncclSum, comm, stream) ==
        ncclSuccess);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  std::atomic<bool> aborted{false};
  std::thread other([&] {
    comm.abort();
    aborted = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(!aborted);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  other.join();
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  meet();
}

TEST_CASE("waiting for a rank that has left the communicator is an error") {
  const World world;
  if (world.size == 1) return;
  Comm comm;
  const Floats buffer(100);
  if (world.last()) {
    comm.abort();
  } else {
    CHECK(gather(comm, buffer, 5) == ncclRemoteError);
    CHECK_THAT(reason(), ContainsSubstring("has left the communicator"));
  }
  meet();
}

TEST_CASE("an abort from another thread ends a waiting call") {
  const World world;
  if (world.size == 1) return;
  Comm comm;
  const Floats buffer(100);
  if (world.rank == 0) {
    std::thread watchdog([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm.abort();
    });
    CHECK(gather(comm, buffer, 5) == ncclRemoteError);
    watchdog.join();
    CHECK_THAT(reason(), ContainsSubstring("aborted"));
  }
  meet();
}

TEST_CASE("registered memory can be freed only after its registration has ended") {
  Comm comm;
  void* memory = nullptr;
  void* handle = nullptr;
  REQUIRE(ncclMemAlloc(&memory, 64) == ncclSuccess);
  CHECK(ncclCommRegister(comm, &memory, 8, &handle) == ncclInvalidArgument);
  REQUIRE(ncclCommRegister(comm, memory, 64, &handle) == ncclSuccess);
  void* again = nullptr;
  CHECK(ncclCommRegister(comm, memory, 64, &again) == ncclInvalidUsage);
  CHECK(ncclMemFree(memory) == ncclInvalidUsage);
  REQUIRE(ncclCommDeregister(comm, handle) == ncclSuccess);
  CHECK(ncclCommDeregister(comm, handle) == ncclInvalidArgument);
  CHECK(ncclMemFree(memory) == ncclSuccess);
  CHECK(ncclMemFree(memory) == ncclInvalidArgument);
  // Aborting a communicator ends its registrations.
  REQUIRE(ncclMemAlloc(&memory, 64) == ncclSuccess);
  REQUIRE(ncclCommRegister(comm, memory, 64, &handle) == ncclSuccess);
  comm.abort();
  CHECK(ncclMemFree(memory) == ncclSuccess);
}

TEST_CASE("the end of a communicator ends its own registrations, and no others") {
  Comm first;
  const Comm second;
  void* memory = nullptr;
  void* handle = nullptr;
  void* second_handle = nullptr;
  REQUIRE(ncclMemAlloc(&memory, 64) == ncclSuccess);
  REQUIRE(ncclCommRegister(first, memory, 64, &handle) == ncclSuccess);
  REQUIRE(ncclCommRegister(second, memory, 64, &second_handle) == ncclSuccess);
  first.abort();
  CHECK(ncclMemFree(memory) == ncclInvalidUsage);
  // The handle of a new communicator may have the address of the first one's handle.
  const Comm third;
  CHECK(ncclCommDeregister(third, handle) == ncclInvalidArgument);
  void* third_handle = nullptr;
  REQUIRE(ncclCommRegister(third, memory, 64, &third_handle) == ncclSuccess);
  CHECK(ncclCommDeregister(third, third_handle) == ncclSuccess);
  CHECK(ncclCommDeregister(second, second_handle) == ncclSuccess);
  CHECK(ncclMemFree(memory) == ncclSuccess);
}
