// Helpers for tests of emulated NCCL: communicators of all ranks, and memory for their calls.
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <string>

#include "emulated/dist/control.h"
#include "tests/support/catch.h"

namespace emulated_tests {

struct World {
  int rank = 0;
  int size = 1;
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  bool last() const { return rank == size - 1; }
  int after() const { return (rank + 1) % size; }
  int before() const { return (rank + size - 1) % size; }
};

// A communicator of all ranks. Each test case makes its own, because a communicator that has failed
// is unusable.
class Comm {
 public:
  Comm() {
    const World world;
    ncclUniqueId id{};
    if (world.rank == 0) REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
    REQUIRE(ncclCommInitRank(&comm_, world.size, id, world.rank) == ncclSuccess);
  }
  ~Comm() { abort(); }
  void abort() {
    if (comm_ != nullptr) (void)ncclCommAbort(comm_);
    comm_ = nullptr;
  }
  operator ncclComm_t() const { return comm_; }
  ncclResult_t failure() const {
    ncclResult_t result = ncclSuccess;
    REQUIRE(ncclCommGetAsyncError(comm_, &result) == ncclSuccess);
    return result;
  }

 private:
  ncclComm_t comm_ = nullptr;
};

// Memory that both the GPU and the host may read and write.
class Floats {
 public:
  explicit Floats(size_t count) : count_(count) {
    REQUIRE(cudaMallocManaged(&data_, count * sizeof(float)) == cudaSuccess);
    for (size_t i = 0; i < count; ++i) data_[i] = static_cast<float>(i);
  }
  ~Floats() { (void)cudaFree(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* at(size_t i) const { return data_ + i; }
  float operator[](size_t i) const { return data_[i]; }
  size_t count() const { return count_; }

 private:
  float* data_ = nullptr;
  size_t count_;
};

// While an object of this class exists, calls wait only 0.3 seconds for other ranks.
class ShortPatience {
 public:
  ShortPatience() : before_(emulated::nccl_timeout_s()) { emulated::set_nccl_timeout_s(0.3); }
  ~ShortPatience() { emulated::set_nccl_timeout_s(before_); }

 private:
  double before_;
};

inline ncclResult_t gather(ncclComm_t comm, const Floats& buffer, size_t count) {
  const auto own = static_cast<size_t>(World().rank) * count;
  return ncclAllGather(buffer.at(own), buffer.at(0), count, ncclFloat32, comm, nullptr);
}

inline std::string reason() { return ncclGetLastError(nullptr); }

// Checks that `call` with a new communicator is refused because of its arguments.
template <class Call>
void check_refused(const Call& call, const char* why) {
  const Comm comm;
  CHECK(call(comm) == ncclInvalidArgument);
  CHECK_THAT(reason(), Catch::Matchers::ContainsSubstring(why));
}

inline void meet() { MPI_Barrier(MPI_COMM_WORLD); }

}  // namespace emulated_tests
