// Tests that a failed call of emulated NCCL makes its communicator unusable, and no other
// communicator. Also tests that the other ranks learn of the failure, and that the memory of the
// failed call is not written later.
#include <stdexcept>
#include <thread>

#include "emulated/dist/communicator.h"
#include "tests/emulated/nccl_world.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;
namespace nccl = emulated::nccl;

TEST_CASE("a communicator stays failed after a failure, and others are not affected") {
  const World world;
  Comm comm;
  const Comm other;
  const Floats buffer(10);
  float* const data = buffer.at(0);
  const auto reduce = [&](ncclComm_t here, ncclRedOp_t reduction) {
    return ncclAllReduce(data, data, 1, ncclFloat32, reduction, here, nullptr);
  };
  void* memory = nullptr;
  void* handle = nullptr;
  void* other_handle = nullptr;
  REQUIRE(ncclMemAlloc(&memory, 64) == ncclSuccess);
  REQUIRE(ncclCommRegister(other, memory, 64, &other_handle) == ncclSuccess);
  CHECK(reduce(comm, ncclSum) == ncclSuccess);
  meet();
  if (world.rank == 0) {
    CHECK(reduce(comm, ncclMax) == ncclInvalidArgument);
    CHECK(reduce(comm, ncclSum) == ncclInvalidArgument);
    CHECK_THAT(reason(), ContainsSubstring("has failed before"));
    ncclComm_t part = nullptr;
    CHECK(ncclCommSplit(comm, 0, 0, &part, nullptr) == ncclInvalidArgument);
    CHECK(ncclCommRegister(comm, memory, 64, &handle) == ncclInvalidArgument);
    CHECK(comm.failure() == ncclInvalidArgument);
  } else {
    // These ranks wait for rank 0, which has left the communicator because its call failed.
    CHECK(reduce(comm, ncclSum) == ncclRemoteError);
    CHECK(comm.failure() == ncclRemoteError);
  }
  CHECK(other.failure() == ncclSuccess);
  CHECK(reduce(other, ncclSum) == ncclSuccess);
  CHECK(ncclCommDeregister(other, other_handle) == ncclSuccess);
  CHECK(ncclMemFree(memory) == ncclSuccess);
  comm.abort();
  meet();
}

TEST_CASE("a failure during another thread's call reaches the other ranks, if that call succeeds") {
  const World world;
  if (world.size == 1) return;
  const Comm comm;
  const Floats buffer(2);
  const auto reduce = [&](size_t i) {
    return ncclAllReduce(buffer.at(i), buffer.at(i), 1, ncclFloat32, ncclSum, comm, nullptr);
  };
  if (world.rank == 0) {
    ncclResult_t both = ncclInProgress;
    std::thread caller([&] {
      (void)ncclGroupStart();
      (void)reduce(0);
      (void)reduce(1);
      both = ncclGroupEnd();
    });
    meet();  // the first of the two calls is done, and the second one waits
    CHECK(reduce(0) == ncclInvalidUsage);
    CHECK_THAT(reason(), ContainsSubstring("two threads use a communicator"));
    meet();
    caller.join();
    CHECK(both == ncclSuccess);
    meet();
  } else {
    CHECK(reduce(0) == ncclSuccess);
    meet();
    meet();
    CHECK(reduce(1) == ncclSuccess);
    meet();
    const ShortPatience short_patience;
    CHECK(reduce(0) == ncclRemoteError);
    CHECK_THAT(reason(), ContainsSubstring("rank 0 has left the communicator"));
  }
  meet();
}

TEST_CASE("an exception that is not a failure of NCCL makes a communicator unusable, too") {
  const World world;
  nccl::Communicator communicator(world.rank, world.size, 0);
  const Floats buffer(1);
  // No vector can hold the contributions of all ranks, which have just over 2^63 bytes.
  const uint64_t count = (uint64_t{1} << 61) / static_cast<uint64_t>(world.size) + 1;
  const nccl::Call call{{nccl::Kind::all_reduce, ncclFloat32, ncclSum, -1, count},
                        buffer.at(0), buffer.at(0)};
  CHECK_THROWS_AS(communicator.run({&call, 1}), std::length_error);
  CHECK(communicator.failure() == ncclInternalError);
  CHECK_THROWS_WITH(communicator.run({&call, 1}), "the communicator has failed before");
  CHECK_THROWS_WITH(communicator.split(0, 0), "the communicator has failed before");
  meet();
}

TEST_CASE("data that arrives after its call has failed is not written to memory") {
  const World world;
  if (world.size == 1) return;
  const Floats buffer(static_cast<size_t>(world.size));
  const nccl::Operation operation{nccl::Kind::all_gather, ncclFloat32, -1, -1, 1};
  if (world.rank == 0) {
    nccl::Communicator communicator(world.rank, world.size, 0);
    meet();  // all other ranks have announced the call
    const ShortPatience short_patience;
    const nccl::Call call{operation, buffer.at(0), buffer.at(0)};
    CHECK_THROWS_WITH(communicator.run({&call, 1}),
                      "rank 0 has waited too long for data that other ranks have announced");
    meet();
    meet();  // all other ranks have sent the data
    for (size_t i = 0; i < buffer.count(); ++i) CHECK(buffer[i] == static_cast<float>(i));
  } else {
    nccl::Peers peers(world.rank, world.size);
    peers.announce(0, {operation});
    meet();
    meet();
    const float late = -1;
    peers.start_clock();
    peers.send(0, &late, sizeof(late));
    peers.finish();
    meet();
  }
}
