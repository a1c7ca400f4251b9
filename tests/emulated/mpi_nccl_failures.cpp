// Tests that a failed call of emulated NCCL makes its communicator unusable, and no other one.
#include "tests/emulated/nccl_world.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

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
