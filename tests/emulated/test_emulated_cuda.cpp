// Tests the execution model of the emulated device: barriers, missing barriers, indices,
// parameters, the order of threads, shared memory, atomics, and launches from several OS threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cuda/shared_memory.cuh"
#include "tests/emulated/launch.h"
#include "tests/support/catch.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr int block_size = 96;

// Reverses x within each block.
template <bool with_barrier>
__global__ void reverse(int* y, const int* x) {
  __shared__ int values[block_size];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  values[threadIdx.x] = x[i];
  if (with_barrier) __syncthreads();
  y[i] = values[block_size - 1 - threadIdx.x];
}

// y[i] is the sum of 2^r x[i + 1] over rounds r. In place of x[i + 1], the last thread of a block
// takes the block's first x. Each round writes the shared memory anew.
template <bool with_second_barrier>
__global__ void neighbours(int* y, const int* x) {
  __shared__ int values[block_size];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  int sum = 0;
  for (int round = 0; round < 4; ++round) {
    values[threadIdx.x] = x[i] << round;
    __syncthreads();
    sum += values[(threadIdx.x + 1) % block_size];
    if (with_second_barrier) __syncthreads();
  }
  y[i] = sum;
}

// Each lane passes its value to another lane of its warp, through shared memory.
template <bool with_barrier>
__global__ void rotate_in_warps(int* y, const int* x) {
  __shared__ int values[block_size];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned lane = threadIdx.x % 32;
  values[threadIdx.x] = x[i];
  if (with_barrier) __syncwarp();
  y[i] = values[threadIdx.x - lane + (lane + 5) % 32];
}

// The last warp computes a sum that every thread reads.
template <bool with_barrier>
__global__ void broadcast(int* y, const int* x) {
  __shared__ int sum;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x / 32 == 2) {
    const int total = __shfl_sync(~0u, x[i], 0) + __shfl_sync(~0u, x[i], 31);
    if (threadIdx.x % 32 == 0) sum = total;
  }
  if (with_barrier) __syncthreads();
  y[i] = sum;
}

bool wrong(void (*kernel)(int*, const int*), int (*expected)(const int* x, int i)) {
  constexpr int blocks = 3;
  static int salt = 0;  // differs in each launch, so values left by an earlier launch are wrong
  salt += 1000;
  std::vector<int> x(blocks * block_size);
  std::iota(x.begin(), x.end(), salt);
  std::vector<int> y(x.size());
  REQUIRE(launch({blocks, block_size}, kernel, y.data(), x.data()) == cudaSuccess);
  for (int i = 0; i < blocks * block_size; ++i) {
    const int t = i % block_size;
    if (y[size_t(i)] != expected(x.data() + i - t, t)) return true;
  }
  return false;
}

__global__ void skip_barrier() {
  if (threadIdx.x >= 32) __syncthreads();
}

__global__ void two_barriers() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void other_masks() {
  if (threadIdx.x % 32 < 16) {
    __syncwarp(0xFFFFFFFFu);
  } else {
    __syncwarp(0xFFFF0000u);
  }
}

__global__ void foreign_mask() { __shfl_xor_sync(0x0000FFFFu, 1, 1); }

__global__ void barrier_and_shuffle() {
  if (threadIdx.x == 40) {
    __syncthreads();
  } else {
    __shfl_sync(0xFFFFFFFFu, 1.0f, 0);
  }
}

__global__ void early_end() {
  if (threadIdx.x == 7) return;
  __syncwarp();
}

__global__ void throws() {
  if (threadIdx.x == 3) throw std::runtime_error("no such tile");
  __syncthreads();
}

__global__ void fails() {
  __syncthreads();
  if (threadIdx.x == 33) emulated::fail("a tile is not aligned");
  __syncthreads();
}

__global__ void launches() {
  CHECK(launch({1, 1}, fails) == cudaErrorNotSupported);
}

__global__ void mark(int* cells) {
  const unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
  const unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int& cell = cells[x + gridDim.x * blockDim.x * (y + gridDim.y * blockDim.y * z)];
  cell += static_cast<int>(1 + thread + 1000 * block);
}

struct Settings {
  float factor;
  int64_t offset;
};

__global__ void scale(float* y, Settings settings, int n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < static_cast<unsigned>(n)) y[i] = settings.factor * float(i + settings.offset);
}

__global__ void trace(int* order, int* count) {
  const int place = atomicAdd(count, 1);
  order[place] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

std::vector<int> order_of(uint64_t seed) {
  const OrderSeed order_seed(seed);
  std::vector<int> order(8 * 40);
  int count = 0;
  REQUIRE(launch({8, 40}, trace, order.data(), &count) == cudaSuccess);
  return order;
}

// Every block must find NaN in its shared memory, not the values of an earlier block.
__global__ void use_dynamic(float* sums, int floats, int* poisoned) {
  auto* const values = tessera::cuda::dynamic_shared<float>();
  for (int i = static_cast<int>(threadIdx.x); i < floats; i += static_cast<int>(blockDim.x)) {
    if (std::isnan(values[i])) atomicAdd(poisoned, 1);
    values[i] = 1;
  }
  if (reinterpret_cast<uintptr_t>(values) % 16 != 0) atomicAdd(poisoned, 1);
  __syncthreads();
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = 0;
  for (int i = 0; i < floats; ++i) sums[blockIdx.x] += values[i];
}

struct Atomics {
  int sum;
  unsigned claimed;
  unsigned claims;
  unsigned long long wide;
  int lowest;
  int highest;
  unsigned last;
  unsigned bits;
};

__global__ void use_atomics(Atomics* all, int* places) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  places[atomicAdd(&all->sum, 1)] += 1;
  if (atomicCAS(&all->claimed, 0u, 1u) == 0u) atomicAdd(&all->claims, 1);
  atomicAdd(&all->wide, 1ull << 33);
  atomicMin(&all->lowest, -i);
  atomicMax(&all->highest, i);
  atomicExch(&all->last, 5u);
  atomicOr(&all->bits, 1u << i % 32);
}

__global__ void sum_of_block(int* y, const int* x) {
  __shared__ int partial[4];
  int value = x[blockIdx.x * 128 + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}

}  // namespace

TEST_CASE("emulated: a missing barrier shows in some orders, a correct kernel passes in all") {
  const auto reversed = [](const int* x, int i) { return x[block_size - 1 - i]; };
  CHECK(seeds_where([&] { return wrong(reverse<true>, reversed); }) == 0);
  CHECK(seeds_where([&] { return wrong(reverse<false>, reversed); }) == 8);

  const auto next = [](const int* x, int i) { return 15 * x[(i + 1) % block_size]; };
  CHECK(seeds_where([&] { return wrong(neighbours<true>, next); }) == 0);
  CHECK(seeds_where([&] { return wrong(neighbours<false>, next); }) == 8);

  const auto rotated = [](const int* x, int i) { return x[i - i % 32 + (i + 5) % 32]; };
  CHECK(seeds_where([&] { return wrong(rotate_in_warps<true>, rotated); }) == 0);
  CHECK(seeds_where([&] { return wrong(rotate_in_warps<false>, rotated); }) == 8);

  // Without the barrier the result is correct by chance if the last warp runs first.
  const auto total = [](const int* x, int) { return x[64] + x[95]; };
  CHECK(seeds_where([&] { return wrong(broadcast<true>, total); }) == 0);
  CHECK(seeds_where([&] { return wrong(broadcast<false>, total); }) >= 4);
}

TEST_CASE("emulated: a deadlock ends the launch with an error that says who waits where") {
  struct Case {
    void (*kernel)();
    std::vector<const char*> says;
  };
  const std::vector<Case> cases = {
      {skip_barrier,
       {"block (", "of a grid of (3, 1, 1)", "64 of 96 threads wait in __syncthreads at",
        "test_emulated_cuda.cpp", "the first is (32, 0, 0)", "32 of 96 threads have ended",
        "skip_barrier"}},
      {two_barriers, {"different barriers", "48 of 96 threads wait in __syncthreads"}},
      {other_masks, {"48 of 96 threads wait in __syncwarp", "with mask 0xffffffff"}},
      {foreign_mask, {"__shfl_xor_sync is called by lane", "its mask 0x0000ffff"}},
      {barrier_and_shuffle,
       {"1 of 96 threads wait in __syncthreads", "31 of 96 threads wait in __shfl_sync"}},
      {early_end, {"31 of 96 threads wait in __syncwarp", "have ended"}},
      {throws, {"thread (3, 0, 0): the kernel has thrown: no such tile"}},
      {fails, {"thread (33, 0, 0): a tile is not aligned"}},
  };
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const OrderSeed order(seed);
    for (const Case& broken : cases) {
      REQUIRE(launch({3, 96}, broken.kernel) == cudaErrorLaunchFailure);
      CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
      CHECK(cudaGetLastError() == cudaSuccess);
      for (const char* part : broken.says) {
        CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure), ContainsSubstring(part));
        CHECK_THAT(emulated::last_failure(), ContainsSubstring(part));
      }
      // A correct kernel must still work after the failed launch.
      const auto reversed = [](const int* x, int i) { return x[block_size - 1 - i]; };
      CHECK_FALSE(wrong(reverse<true>, reversed));
    }
  }
}

TEST_CASE("emulated: device code runs only in a launch, and only the host launches") {
  CHECK(launch({1, 1}, launches) == cudaSuccess);
  CHECK_THROWS_AS(__syncthreads(), std::logic_error);
  CHECK_THROWS_AS(emulated::fail("here"), std::logic_error);
}

TEST_CASE("emulated: every thread of a grid in three dimensions runs once, with its indices") {
  const dim3 grid(3, 2, 4);
  const dim3 block(5, 3, 2);
  std::vector<int> expected;
  for (int z = 0; z < 8; ++z) {
    for (int y = 0; y < 6; ++y) {
      for (int x = 0; x < 15; ++x) {
        const int thread = x % 5 + 5 * (y % 3 + 3 * (z % 2));
        expected.push_back(1 + thread + 1000 * (x / 5 + 3 * (y / 3 + 2 * (z / 2))));
      }
    }
  }
  CHECK(seeds_where([&] {
          std::vector<int> cells(expected.size());
          REQUIRE(launch({grid, block}, mark, cells.data()) == cudaSuccess);
          return cells != expected;
        }) == 0);
}

TEST_CASE("emulated: parameters are passed by value, converted to the kernel's types") {
  std::vector<float> y(5);
  REQUIRE(launch({2, 4}, scale, y.data(), Settings{0.5f, int64_t{1} << 20}, short{5}) ==
          cudaSuccess);
  for (int i = 0; i < 5; ++i) CHECK(y[size_t(i)] == 0.5f * float((1 << 20) + i));
}

TEST_CASE("emulated: the seed determines the order of threads") {
  std::vector<int> ascending(8 * 40);
  std::iota(ascending.begin(), ascending.end(), 0);
  CHECK(order_of(0) == ascending);
  CHECK(order_of(1) == std::vector<int>(ascending.rbegin(), ascending.rend()));
  std::set<std::vector<int>> orders{order_of(0), order_of(1)};
  for (uint64_t seed = 2; seed < 6; ++seed) {
    const std::vector<int> order = order_of(seed);
    CHECK(order == order_of(seed));
    orders.insert(order);
    std::vector<int> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == ascending);
  }
  CHECK(orders.size() == 6);
}

TEST_CASE("emulated: dynamic shared memory is aligned, and full of NaN in every block") {
  const int floats = GENERATE(1, 7, 1000, 12 * 1024, 227 * 256);
  const size_t bytes = sizeof(float) * size_t(floats);
  if (floats > 12 * 1024) {
    REQUIRE(cudaFuncSetAttribute(use_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 int(bytes)) == cudaSuccess);
  }
  int poisoned = 0;
  std::vector<float> sums(5);
  REQUIRE(launch({5, 64, bytes}, use_dynamic, sums.data(), floats, &poisoned) == cudaSuccess);
  CHECK(poisoned == 5 * floats);
  CHECK(sums == std::vector<float>(5, float(floats)));
}

TEST_CASE("emulated: atomics return the old value") {
  CHECK(seeds_where([] {
          Atomics all{};
          std::vector<int> places(7 * 50);
          REQUIRE(launch({7, 50}, use_atomics, &all, places.data()) == cudaSuccess);
          return places != std::vector<int>(7 * 50, 1) || all.sum != 350 || all.claimed != 1 ||
                 all.claims != 1 || all.wide != 350ull << 33 || all.lowest != -349 ||
                 all.highest != 349 || all.last != 5 || all.bits != ~0u;
        }) == 0);
}

TEST_CASE("emulated: several OS threads may launch at the same time", "[threads]") {
  std::array<int, 3> mistakes{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([t, &mistakes] {
      std::vector<int> x(20 * 128);
      std::vector<int> y(20);
      for (int round = 0; round < 30; ++round) {
        std::fill(x.begin(), x.end(), 100 * t + round);
        const bool ran = launch({20, 128}, sum_of_block, y.data(), x.data()) == cudaSuccess;
        if (!ran || y != std::vector<int>(20, 128 * (100 * t + round))) ++mistakes[size_t(t)];
        // OS thread 0 also makes launches that fail. The other OS threads must get no error.
        if (t != 0 || round % 10 != 0) continue;
        if (launch({2, 64}, skip_barrier) != cudaErrorLaunchFailure) ++mistakes[0];
      }
      const bool failed = cudaGetLastError() != cudaSuccess;
      if (failed != (t == 0)) ++mistakes[size_t(t)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(mistakes == std::array<int, 3>{});
}
