// Tests for NCCL's communicator. Some of them run over MPI, too.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // for the listener below
#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/cuda.h"
#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;
using Catch::Matchers::ContainsSubstring;

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

// Skips the program if ranks that share a GPU would connect over NCCL, which refuses them. All
// ranks of a test program are on one host, so they share GPUs if there are more ranks than GPUs.
class SharedGpu : public Listener {
 public:
  using Listener::Listener;
  void testRunStarting(const Catch::TestRunInfo&) override {
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!over_nccl() || size <= cuda::device_count()) return;
    if (rank == 0) {
      std::puts("skipped: NCCL refuses several ranks on one GPU; TESSERA_TEST_COMM=mpi does not");
    }
    MPI_Finalize();
    std::exit(0);
  }
};
CATCH_REGISTER_LISTENER(SharedGpu)

}  // namespace

TEST_CASE("NCCL without a usable GPU is refused, with the reason") {
  if (cuda::device_count() > 0) TESSERA_SKIP("there is a usable GPU");
  CHECK_THROWS_WITH(nccl_communicator(0), ContainsSubstring(cuda::unusable()));
}

// Staging has a chunk for each rank, except that a single rank has none. With up to eight ranks a
// chunk has 8 MiB.
TEST_CASE("NCCL's staging for some numbers of ranks, derived by hand") {
  CHECK(nccl_staging_bytes(1) == 0);
  CHECK(nccl_staging_bytes(2) == 16'777'216);
  CHECK(nccl_staging_bytes(8) == 67'108'864);
  // 64 MiB / 9 is 7,456,540.4 bytes. Rounded down, this is 3,640 units of 2,048 bytes.
  CHECK(nccl_staging_bytes(9) == 9 * 7'454'720);
  CHECK(nccl_staging_bytes(100) == 100 * 1'048'576);
  CHECK(nccl_staging_bytes(3, {.chunk_bytes = 4096}) == 12'288);
  CHECK_THROWS_WITH(nccl_staging_bytes(3, {.chunk_bytes = 1000}),
                    "nccl: chunks of 1000 bytes, expected a multiple of 2048");
}

TEST_CASE("NCCL's communicator is on a GPU, and accepts only that GPU's memory") {
  if (!over_nccl()) TESSERA_SKIP("NCCL connects GPUs");
  CHECK(job().name() == "nccl");
  CHECK(job().device() == default_device());
  CHECK(job().allocate(8, Category::communication)->device() == default_device());
  const Tensor host = Tensor::zeros({job().size()}, DType::f32, Device{});
  CHECK_THROWS_WITH(job().all_gather(host, {}),
                    "all_gather: a tensor on cpu, expected one on " + default_device().to_string());
}

// With fewer contributors than ranks, NCCL's communicator adds the contributors' pieces one by one,
// and the first piece overwrites the shard. Here the shard is the memory of the rank's own piece of
// the input. So a contributor must begin with its own piece, or this piece would be lost.
TEST_CASE("reduce_scatter of fewer contributors than ranks, into the rank's own piece") {
  const int ranks = job().size();
  const int64_t begin = job().rank() * int64_t{1000};
  for (int contributors = 1; contributors < ranks; ++contributors) {
    const Tensor input = filled(job().rank(), ranks * int64_t{1000});
    const Tensor shard = input.flat(begin, begin + 1000);
    job().reduce_scatter(shard, input, contributors, {}).wait();
    CHECK(differences(shard, [&](int64_t i) { return sum_at(contributors, begin + i); }) == 0);
  }
}

TEST_CASE("a call that nobody waits for holds its buffers until it is done, and no longer") {
  if (!over_nccl()) TESSERA_SKIP("other communicators let go at once");
  const int64_t elements = job().size() * 1000;
  const Tensor first = Tensor::zeros({elements});
  const Tensor second = Tensor::zeros({elements});
  // Passes views, because each view has its own pointer to the storage. So the storage's use count
  // is greater than one while a call holds a view.
  job().all_gather(first.flat(0, elements), {});
  const Work work = job().all_gather(second.flat(0, elements), {});
  CHECK(second.storage().use_count() > 1);
  work.wait();  // calls finish in order, so the first call is done, too
  CHECK(first.storage().use_count() == 1);
  CHECK(second.storage().use_count() == 1);

  job().all_gather(first.flat(0, elements), {});
  job().barrier();
  CHECK(first.storage().use_count() == 1);
}

TEST_CASE("after a gather of host memory with pieces that are too large, NCCL is still usable") {
  const int ranks = job().size();
  if (!over_nccl() || ranks == 1) TESSERA_SKIP("only NCCL with several ranks has a limit");
  // The call is refused before it reads its buffer, so the buffer needs no memory of this size.
  Tensor large = Tensor::unallocated({ranks * (int64_t{1} << 31)}, DType::u8);
  large.attach(adopt(std::make_shared<std::byte>(), large.bytes(), Category::communication, {}), 0);
  CHECK_THROWS_WITH(job().all_gather_host(large, {Traffic::flags}),
                    ContainsSubstring("expected less than 2 GiB"));
  const Tensor flags = Tensor::zeros({ranks}, DType::u8, Device{});
  flags.data<uint8_t>()[job().rank()] = 1;
  job().all_gather_host(flags, {Traffic::flags}).wait();
  for (const uint8_t flag : flags.values<uint8_t>()) CHECK(flag == 1);
}

// An optimizer's destructor calls Work::done(), and may run in a capture.
TEST_CASE("done() of an earlier call neither throws in a capture nor breaks it") {
  if (!job().captures()) TESSERA_SKIP("graphs are captured on CUDA, over NCCL");
  const Tensor buffer = Tensor::zeros({job().size()});
  const Work work = job().all_gather(buffer, {});
  job().barrier();
  bool done = false;
  const auto launch = job().capture([&] { done = work.done(); });
  CHECK(done);
  launch();
  job().barrier();
}

// In tests, launches of core/ wait until their kernels are done (share_memory_with_host). The
// all-reduce of integers launches no such kernel. So on deferred streams (emulated/deferred.h), the
// call is still queued when the group is destroyed.
TEST_CASE("a call that was waited for is finished before its group is destroyed") {
  const Tensor buffer = filled<int64_t>(job().rank(), 1000);
  {
    const auto group = job().split(0, job().rank(), "all");
    group->all_reduce(buffer, {}).wait();
  }
  CHECK(differences<int64_t>(buffer, [](int64_t i) { return sum_at(job().size(), i); }) == 0);
  job().barrier();
}
