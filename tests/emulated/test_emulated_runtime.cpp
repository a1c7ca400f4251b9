// Tests the calls of the emulated runtime: their effects, and the arguments that they refuse.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulated/launch.h"
#include "tests/support/catch.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

__global__ void nothing() {}
__global__ void nothing_else() {}

// Declares `ints` ints of static shared memory, the last 32 of them in a lambda.
template <int ints>
__global__ void declares(int* y) {
  __shared__ int values[ints - 32];
  const auto of_next_thread = [](int value) {
    __shared__ int others[32];
    others[threadIdx.x] = value;
    __syncthreads();
    return others[(threadIdx.x + 1) % 32];
  };
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  y[threadIdx.x] = of_next_thread(values[31 - threadIdx.x]);
}

// Checks that a call has failed as expected, and that its message says why.
void check_refused(cudaError_t error, cudaError_t expected, const char* why) {
  CHECK(error == expected);
  CHECK(cudaPeekAtLastError() == expected);
  CHECK_THAT(cudaGetErrorString(error), ContainsSubstring(why));
  CHECK(cudaGetLastError() == expected);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK_THAT(cudaGetErrorString(error), ContainsSubstring(why));
}

// Sets the number of devices. The destructor restores the defaults.
struct Devices {
  explicit Devices(int count) { emulated::set_device_count(count); }
  ~Devices() {
    emulated::set_device_count(1);
    (void)cudaSetDevice(0);
    emulated::set_device_count(-1);
  }
};

}  // namespace

TEST_CASE("emulated: launches that a GPU would refuse") {
  const auto refused = [](Shape shape, const char* why) {
    check_refused(launch(shape, nothing), cudaErrorInvalidConfiguration, why);
  };
  refused({0, 32}, "the grid has no blocks");
  refused({dim3(1, 0), 32}, "the grid has no blocks");
  refused({1, 0}, "the block has no threads");
  refused({1, 1025}, "at most 1024 threads");
  refused({1, dim3(32, 32, 2)}, "grid (1, 1, 1), block (32, 32, 2)");
  refused({1, dim3(1, 1, 65)}, "at most 64 threads in z");
  refused({dim3(1, 65536), 1}, "65535");
  refused({0x80000000u, 1}, "2147483647");
  CHECK(launch({dim3(1, 1, 65535), dim3(1, 1, 1)}, nothing) == cudaSuccess);
  CHECK(launch({1, dim3(16, 1, 64)}, nothing) == cudaSuccess);

  check_refused(launch({1, 32, (48 << 10) + 1}, nothing), cudaErrorInvalidValue,
                "cudaFuncSetAttribute has not been asked");
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  check_refused(allow((227 << 10) + 1), cudaErrorInvalidValue, "232448");
  REQUIRE(allow(227 << 10) == cudaSuccess);
  CHECK(launch({1, 32, 227 << 10}, nothing) == cudaSuccess);
  CHECK(launch({1, 32, 227 << 10}, nothing_else) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

TEST_CASE("emulated: a kernel's static shared memory counts towards the limit") {
  constexpr int ints = 1024;
  constexpr size_t without_asking = (48 << 10) - 4 * ints;
  int y[32];
  CHECK(launch({1, 32, without_asking}, declares<ints>, y) == cudaSuccess);
  CHECK(y[0] == 30);
  check_refused(launch({1, 32, without_asking + 1}, declares<ints>, y), cudaErrorInvalidValue,
                "besides the 4096 that the kernel declares");
  const auto allow = [](auto* kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
  };
  constexpr size_t most = (227 << 10) - 4 * ints;
  check_refused(allow(declares<ints>, most + 1), cudaErrorInvalidValue,
                "at most 228352: a block has 232448, of which the kernel declares 4096");
  REQUIRE(allow(declares<ints>, most) == cudaSuccess);
  CHECK(launch({1, 32, most}, declares<ints>, y) == cudaSuccess);

  CHECK(launch({1, 32}, declares<12 << 10>, y) == cudaSuccess);
  check_refused(launch({1, 32}, declares<(12 << 10) + 1>, y), cudaErrorInvalidDeviceFunction,
                "declares 49156 bytes of shared memory, nvcc allows 49152");
}

TEST_CASE("emulated: memory is aligned, full of NaN, and freed once by the matching call") {
  const size_t before = emulated::device_bytes_in_use();
  float* blocks[4] = {};
  REQUIRE(cudaMalloc(&blocks[0], 36) == cudaSuccess);
  REQUIRE(cudaMallocManaged(&blocks[1], 36) == cudaSuccess);
  REQUIRE(cudaMallocAsync(&blocks[2], 36, nullptr) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&blocks[3], 36, cudaHostAllocDefault) == cudaSuccess);
  CHECK(emulated::device_bytes_in_use() == before + 3 * 36);
  constexpr cudaMemoryType types[] = {cudaMemoryTypeDevice, cudaMemoryTypeManaged,
                                      cudaMemoryTypeDevice, cudaMemoryTypeHost};
  for (int i = 0; i < 4; ++i) {
    CHECK(reinterpret_cast<uintptr_t>(blocks[i]) % 256 == 0);
    float values[9] = {};
    REQUIRE(cudaMemcpy(values, blocks[i], 36, cudaMemcpyDefault) == cudaSuccess);
    CHECK(std::all_of(values, values + 9, [](float x) { return std::isnan(x); }));
    cudaPointerAttributes attributes{};
    REQUIRE(cudaPointerGetAttributes(&attributes, blocks[i] + 8) == cudaSuccess);
    CHECK(attributes.type == types[i]);
    REQUIRE(cudaPointerGetAttributes(&attributes, &types[i]) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
  }
  check_refused(cudaFree(blocks[2]), cudaErrorInvalidValue, "memory from cudaMallocAsync");
  check_refused(cudaFree(blocks[3]), cudaErrorInvalidValue, "memory from cudaHostAlloc");
  check_refused(cudaFreeAsync(blocks[0], nullptr), cudaErrorInvalidValue, "from cudaMalloc");
  check_refused(cudaFreeHost(blocks[1]), cudaErrorInvalidValue, "from cudaMallocManaged");
  check_refused(cudaFree(blocks[0] + 1), cudaErrorInvalidValue, "nothing is allocated at");
  CHECK(cudaFree(blocks[0]) == cudaSuccess);
  CHECK(cudaFree(blocks[1]) == cudaSuccess);
  CHECK(cudaFreeAsync(blocks[2], nullptr) == cudaSuccess);
  CHECK(cudaFreeHost(blocks[3]) == cudaSuccess);
  check_refused(cudaFree(blocks[0]), cudaErrorInvalidValue, "nothing is allocated at");
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(emulated::device_bytes_in_use() == before);

  check_refused(cudaMallocAsync(&blocks[0], 0, nullptr), cudaErrorInvalidValue, "of 0 bytes");
  REQUIRE(cudaMalloc(&blocks[0], 0) == cudaSuccess);
  CHECK(blocks[0] == nullptr);
}

TEST_CASE("emulated: a device's memory is limited, and counted by its pool") {
  const size_t used = emulated::device_bytes_in_use();
  emulated::set_device_memory(used + 1000);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  CHECK(free_bytes == 1000);
  CHECK(total_bytes == used + 1000);

  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess);
  uint64_t threshold = ~uint64_t{0};
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  const auto bytes = [&](cudaMemPoolAttr attribute) {
    uint64_t result = 0;
    REQUIRE(cudaMemPoolGetAttribute(pool, attribute, &result) == cudaSuccess);
    return result;
  };
  uint64_t zero = 0;
  REQUIRE(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero) == cudaSuccess);
  const uint64_t before = bytes(cudaMemPoolAttrUsedMemCurrent);
  void* block = nullptr;
  void* other = nullptr;
  REQUIRE(cudaMallocAsync(&block, 600, nullptr) == cudaSuccess);
  check_refused(cudaMalloc(&other, 401), cudaErrorMemoryAllocation, "401 bytes with");
  CHECK(bytes(cudaMemPoolAttrUsedMemCurrent) == before + 600);
  REQUIRE(cudaFreeAsync(block, nullptr) == cudaSuccess);
  REQUIRE(cudaMalloc(&other, 401) == cudaSuccess);
  REQUIRE(cudaFree(other) == cudaSuccess);
  CHECK(bytes(cudaMemPoolAttrUsedMemCurrent) == before);
  CHECK(bytes(cudaMemPoolAttrUsedMemHigh) == before + 600);
  CHECK(cudaMemPoolTrimTo(pool, 0) == cudaSuccess);
  check_refused(cudaMemPoolTrimTo(nullptr, 0), cudaErrorInvalidValue, "no such pool");
  emulated::set_device_memory(size_t{16} << 30);
}

TEST_CASE("emulated: copies and memsets outside of an allocation are refused") {
  int* device = nullptr;
  int* pinned = nullptr;
  REQUIRE(cudaMalloc(&device, 40) == cudaSuccess);
  REQUIRE(cudaMallocHost(&pinned, 40) == cudaSuccess);
  std::vector<int> host(10, 3);
  REQUIRE(cudaMemcpy(device, host.data(), 40, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemset(device + 2, 0, 8) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pinned, device, 40, cudaMemcpyDefault) == cudaSuccess);
  REQUIRE(cudaMemcpy(host.data(), pinned, 40, cudaMemcpyDefault) == cudaSuccess);
  CHECK(host == std::vector<int>{3, 3, 0, 0, 3, 3, 3, 3, 3, 3});

  const auto refused = [](cudaError_t error, const char* why) {
    check_refused(error, cudaErrorInvalidValue, why);
  };
  refused(cudaMemcpy(device + 1, host.data(), 40, cudaMemcpyDefault),
          "cudaMemcpy: 40 bytes from byte 4 on, but the memory has 40 bytes (from cudaMalloc)");
  refused(cudaMemcpyAsync(host.data(), pinned + 9, 8, cudaMemcpyDefault),
          "has 40 bytes (from cudaHostAlloc)");
  refused(cudaMemset(device, 0, 41), "cudaMemset: 41 bytes");
  refused(cudaMemsetAsync(host.data(), 0, 4), "not memory from CUDA");
  refused(cudaMemcpy(device, device + 4, 20, cudaMemcpyDefault), "overlap");
  refused(cudaMemcpy(host.data(), host.data() + 5, 4, cudaMemcpyDeviceToHost), "not device memory");
  check_refused(cudaMemcpy(pinned, host.data(), 4, cudaMemcpyHostToDevice),
                cudaErrorInvalidMemcpyDirection, "pinned");
  CHECK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault) == cudaSuccess);
  REQUIRE(cudaFree(device) == cudaSuccess);
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("emulated: streams and events live from their creation to their destruction") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1) == cudaSuccess);
  cudaEvent_t start = nullptr;
  cudaEvent_t end = nullptr;
  cudaEvent_t untimed = nullptr;
  REQUIRE(cudaEventCreate(&start) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming) == cudaSuccess);
  float milliseconds = -1;
  check_refused(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle,
                "never recorded");
  REQUIRE(cudaEventRecord(start, stream) == cudaSuccess);
  CHECK(launch({1, 1, 0, stream}, nothing) == cudaSuccess);
  REQUIRE(cudaEventRecord(end, stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(untimed, stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(nullptr, untimed) == cudaSuccess);
  CHECK(cudaEventQuery(end) == cudaSuccess);
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
  CHECK(milliseconds > 0);
  CHECK(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);
  int calls = 0;
  CHECK(cudaLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &calls) ==
        cudaSuccess);
  CHECK(calls == 1);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);

  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  for (const cudaEvent_t event : {start, end, untimed}) {
    CHECK(cudaEventDestroy(event) == cudaSuccess);
  }
  check_refused(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle, "no such stream");
  check_refused(launch({1, 1, 0, stream}, nothing), cudaErrorInvalidResourceHandle, "no such");
  check_refused(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle, "no such stream");
  check_refused(cudaEventSynchronize(end), cudaErrorInvalidResourceHandle, "no such event");
  check_refused(cudaEventDestroy(end), cudaErrorInvalidResourceHandle, "no such event");
}

TEST_CASE("emulated: one device, several or none") {
  int count = -1;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  cudaDeviceProp properties{};
  REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  CHECK(std::string(properties.name) == "emulated GPU");
  CHECK(properties.major == 9);
  int value = 0;
  REQUIRE(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) ==
          cudaSuccess);
  CHECK(value == 227 << 10);
  {
    const Devices two(2);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    REQUIRE(cudaGetDevice(&value) == cudaSuccess);
    CHECK(value == 1);
    check_refused(cudaSetDevice(2), cudaErrorInvalidDevice,
                  "device 2, but the number of devices is 2");
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(launch({1, 1, 0, stream}, nothing) == cudaSuccess);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    check_refused(launch({1, 1, 0, stream}, nothing), cudaErrorInvalidResourceHandle,
                  "on device 0 with a stream of device 1");
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  }
  {
    const Devices none(0);
    check_refused(cudaGetDeviceCount(&count), cudaErrorNoDevice, "no CUDA-capable device");
    CHECK(count == 0);
    void* block = nullptr;
    check_refused(cudaMalloc(&block, 4), cudaErrorNoDevice, "cudaMalloc");
    check_refused(launch({1, 1}, nothing), cudaErrorNoDevice, "a launch");
  }
  CHECK(std::string(cudaGetErrorName(cudaErrorLaunchFailure)) == "cudaErrorLaunchFailure");
  CHECK(std::string(cudaGetErrorString(cudaSuccess)) == "no error");
}
