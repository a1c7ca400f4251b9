// Tests that host code cannot access device memory, but kernels, copies and the runtime can access
// it. Also tests that the first allocation after a free does not reuse the freed memory.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/emulated/fault.h"
#include "tests/emulated/launch.h"
#include "tests/support/catch.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

__global__ void twice(float* y, const float* x) { y[threadIdx.x] = 2 * x[threadIdx.x]; }

bool protects() {
  const char* const text = std::getenv("TESSERA_EMULATED_PROTECT");
  return text == nullptr || std::string(text) != "0";
}

}  // namespace

TEST_CASE("emulated: host code that reads or writes device memory ends with a fault") {
  if (!protects()) TESSERA_SKIP("TESSERA_EMULATED_PROTECT is 0");
  float* x = nullptr;
  float* pool = nullptr;
  REQUIRE(cudaMalloc(&x, 64) == cudaSuccess);
  REQUIRE(cudaMallocAsync(&pool, 64, nullptr) == cudaSuccess);
  REQUIRE(launch({1, 16}, twice, pool, x) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (volatile float* const address : {x, pool + 3}) {
    const Faulted reads = fault_of([&] { (void)*address; });
    CHECK(reads.by_signal);
    CHECK_THAT(reads.says, ContainsSubstring("host code has accessed device memory"));
    const Faulted writes = fault_of([&] { *address = 1; });
    CHECK(writes.by_signal);
    CHECK_THAT(writes.says, ContainsSubstring("host code has accessed device memory"));
  }
  const Faulted in_host_function = fault_of([&] {
    (void)cudaLaunchHostFunc(nullptr, [](void* address) { *static_cast<float*>(address) = 1; }, x);
    (void)cudaDeviceSynchronize();
  });
  CHECK(in_host_function.by_signal);
  CHECK(cudaFree(x) == cudaSuccess);
  CHECK(cudaFreeAsync(pool, nullptr) == cudaSuccess);
}

TEST_CASE("emulated: kernels and copies can use device memory, and the host its own memory") {
  float* device = nullptr;
  float* managed = nullptr;
  float* pinned = nullptr;
  REQUIRE(cudaMalloc(&device, 64) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&managed, 64) == cudaSuccess);
  REQUIRE(cudaMallocHost(&pinned, 64) == cudaSuccess);
  for (int i = 0; i < 16; ++i) managed[i] = pinned[i] = static_cast<float>(i);
  REQUIRE(launch({1, 16}, twice, device, managed) == cudaSuccess);
  REQUIRE(cudaMemcpy(managed, device, 64, cudaMemcpyDefault) == cudaSuccess);
  CHECK(managed[15] == 30);
  REQUIRE(launch({1, 16}, twice, device, pinned) == cudaSuccess);
  std::vector<float> host(16);
  REQUIRE(cudaMemcpy(host.data(), device, 64, cudaMemcpyDefault) == cudaSuccess);
  CHECK(host[7] == 14);
  CHECK(cudaFree(device) == cudaSuccess);
  CHECK(cudaFree(managed) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("emulated: freed device memory is reused, but not immediately") {
  void* blocks[3] = {};
  for (void*& block : blocks) REQUIRE(cudaMalloc(&block, 1000) == cudaSuccess);
  REQUIRE(cudaFree(blocks[1]) == cudaSuccess);
  void* next = nullptr;
  REQUIRE(cudaMalloc(&next, 1000) == cudaSuccess);
  CHECK(next != blocks[1]);
  std::vector<void*> large;
  for (int i = 0; i < 10; ++i) {
    void* block = nullptr;
    REQUIRE(cudaMalloc(&block, size_t{8} << 20) == cudaSuccess);
    CHECK(cudaFree(block) == cudaSuccess);
    large.push_back(block);
  }
  CHECK(std::count(large.begin(), large.end(), large[0]) > 1);
  for (void* const block : {blocks[0], blocks[2], next}) CHECK(cudaFree(block) == cudaSuccess);
}
