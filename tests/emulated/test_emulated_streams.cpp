// Tests deferred streams, whose work is queued and runs later (emulated/deferred.h). If nothing
// orders two pieces of work, their result must be wrong under some seeds. If a stream, an event or
// a wait orders them, the result must be right under all seeds.
#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated/launch.h"
#include "tests/support/catch.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

__global__ void set_kernel(float* y, float value) { *y = value; }
__global__ void add_kernel(float* y, const float* x) { *y += *x; }
__global__ void fails_kernel() {
  if (threadIdx.x == 0) emulated::fail("a planted failure");
}

/// Two streams, an event, and four floats in device memory.
struct Setup {
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t event = nullptr;
  float* x = nullptr;

  explicit Setup(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&first, flags) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&second, flags) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    REQUIRE(cudaMalloc(&x, 16) == cudaSuccess);
    REQUIRE(cudaMemset(x, 0, 16) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  ~Setup() {
    CHECK(cudaFree(x) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(cudaStreamDestroy(first) == cudaSuccess);
    CHECK(cudaStreamDestroy(second) == cudaSuccess);
  }
  void set(int i, float value, cudaStream_t on) const {
    REQUIRE(launch({1, 1, 0, on}, set_kernel, x + i, value) == cudaSuccess);
  }
  void add(int to, int from, cudaStream_t on) const {
    REQUIRE(launch({1, 1, 0, on}, add_kernel, x + to, x + from) == cudaSuccess);
  }
  void order(cudaStream_t before, cudaStream_t after) const {
    REQUIRE(cudaEventRecord(event, before) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(after, event) == cudaSuccess);
  }
  float value(int i) const {
    float result = 0;
    REQUIRE(cudaMemcpyAsync(&result, x + i, 4, cudaMemcpyDefault, second) == cudaSuccess);
    return result;
  }
};

/// Calls `wrong` under each of the stream seeds 1 to 8. Returns how often the result was true.
template <class Wrong>
int seeds_deferred_where(const Wrong& wrong) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const StreamSeed streams(seed);
    if (wrong()) ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("emulated: a missing wait for an event shows under some seeds") {
  // The second stream reads memory that the first stream writes.
  const auto reads_too_early = [](bool with_event) {
    return seeds_deferred_where([&] {
      const Setup s;
      for (int i = 0; i < 5; ++i) s.set(0, static_cast<float>(i + 1), s.first);
      if (with_event) s.order(s.first, s.second);
      s.add(1, 0, s.second);
      return s.value(1) != 5;
    });
  };
  CHECK(reads_too_early(true) == 0);
  CHECK(reads_too_early(false) >= 4);

  // The first stream overwrites memory that the second stream still has to read.
  const auto writes_too_early = [](bool with_event) {
    return seeds_deferred_where([&] {
      const Setup s;
      s.set(0, 3, s.second);
      s.order(s.second, s.first);
      for (int i = 0; i < 4; ++i) s.add(2, 1, s.second);
      s.add(1, 0, s.second);
      if (with_event) s.order(s.second, s.first);
      s.set(0, 7, s.first);
      return s.value(1) != 3;
    });
  };
  CHECK(writes_too_early(true) == 0);
  CHECK(writes_too_early(false) >= 1);
}

TEST_CASE("emulated: the host finds old values if it does not wait, and new ones if it does") {
  const auto too_early = [](const std::function<void(const Setup&)>& wait) {
    return seeds_deferred_where([&] {
      const Setup s;
      float* pinned = nullptr;
      REQUIRE(cudaMallocHost(&pinned, 4) == cudaSuccess);
      *pinned = 0;
      s.set(0, 1, s.first);
      REQUIRE(cudaMemcpyAsync(pinned, s.x, 4, cudaMemcpyDefault, s.first) == cudaSuccess);
      REQUIRE(cudaEventRecord(s.event, s.first) == cudaSuccess);
      wait(s);
      const bool wrong = *pinned != 1;
      REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
      return wrong;
    });
  };
  CHECK(too_early([](const Setup&) {}) == 8);
  CHECK(too_early([](const Setup& s) {
          CHECK(cudaStreamSynchronize(s.first) == cudaSuccess);
        }) == 0);
  CHECK(too_early([](const Setup& s) {
          CHECK(cudaEventSynchronize(s.event) == cudaSuccess);
        }) == 0);
  CHECK(too_early([](const Setup&) { CHECK(cudaDeviceSynchronize() == cudaSuccess); }) == 0);
  CHECK(too_early([](const Setup& s) {
          while (cudaStreamQuery(s.first) == cudaErrorNotReady) {
          }
        }) == 0);
  CHECK(too_early([](const Setup& s) {
          while (cudaEventQuery(s.event) == cudaErrorNotReady) {
          }
        }) == 0);
  // The host waits for the second stream, but not for the first. Under odd seeds, this wait runs no
  // work of the first stream, so the copy on the first stream has not run.
  CHECK(too_early([](const Setup& s) {
          s.set(3, 1, s.second);
          CHECK(cudaStreamSynchronize(s.second) == cudaSuccess);
        }) >= 4);
}

TEST_CASE("emulated: pinned memory that changes before its copy is done spoils the copy") {
  const StreamSeed streams(1);
  const Setup s;
  float* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 4) == cudaSuccess);
  *pinned = 1;
  REQUIRE(cudaMemcpyAsync(s.x, pinned, 4, cudaMemcpyDefault, s.second) == cudaSuccess);
  *pinned = 2;
  CHECK(s.value(0) == 2);
  // Pageable memory has been read when the call returns.
  float pageable = 3;
  REQUIRE(cudaMemcpyAsync(s.x, &pageable, 4, cudaMemcpyDefault, s.second) == cudaSuccess);
  pageable = 4;
  CHECK(s.value(0) == 3);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("emulated: freeing memory before another stream has read it shows") {
  // The second stream reads `block`, and the first stream frees it. If `with_event` is true, the
  // first stream waits for the read before it frees `block`.
  const auto freed_too_early = [](bool with_event) {
    return seeds_deferred_where([&] {
      const Setup s;
      float* block = nullptr;
      REQUIRE(cudaMallocAsync(&block, 4, s.first) == cudaSuccess);
      REQUIRE(launch({1, 1, 0, s.first}, set_kernel, block, 6.0f) == cudaSuccess);
      s.order(s.first, s.second);
      for (int i = 0; i < 4; ++i) s.add(2, 1, s.second);
      REQUIRE(launch({1, 1, 0, s.second}, add_kernel, s.x, block) == cudaSuccess);
      if (with_event) s.order(s.second, s.first);
      REQUIRE(cudaFreeAsync(block, s.first) == cudaSuccess);
      return s.value(0) != 6;
    });
  };
  CHECK(freed_too_early(true) == 0);
#ifndef __SANITIZE_ADDRESS__  // the sanitizer ends a process that uses freed memory
  CHECK(freed_too_early(false) >= 1);
#endif
}

TEST_CASE("emulated: streams are ordered with the null stream unless they are non-blocking") {
  const auto wrong = [](unsigned flags) {
    return seeds_deferred_where([&] {
      const Setup s(flags);
      s.set(0, 1, s.first);
      s.add(1, 0, nullptr);
      s.add(2, 1, s.second);
      return s.value(2) != 1;
    });
  };
  CHECK(wrong(cudaStreamDefault) == 0);
  CHECK(wrong(cudaStreamNonBlocking) >= 4);
}

TEST_CASE("emulated: work proceeds even if the host never waits") {
  for (const uint64_t seed : {1, 2}) {
    const StreamSeed streams(seed, 20);
    const Setup s;
    std::atomic<int> calls{0};
    const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    REQUIRE(cudaLaunchHostFunc(s.first, count, &calls) == cudaSuccess);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (calls == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    CHECK(calls == 1);
    CHECK(cudaStreamSynchronize(s.first) == cudaSuccess);
  }
}

TEST_CASE("emulated: a failure of deferred work shows at the next wait, and sticks") {
  const StreamSeed streams(1);
  Setup s;
  REQUIRE(launch({1, 32, 0, s.first}, fails_kernel) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s.first) == cudaErrorLaunchFailure);
  CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure), ContainsSubstring("a planted failure"));
  CHECK(cudaStreamSynchronize(s.second) == cudaErrorLaunchFailure);
  CHECK(launch({1, 1, 0, s.second}, set_kernel, s.x, 1.0f) == cudaErrorLaunchFailure);
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  emulated::set_stream_seed(1);  // clears the failure, but not the thread's last error
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  s.set(0, 2, s.second);
  CHECK(s.value(0) == 2);
}

TEST_CASE("emulated: after a failure, a pool neither counts new memory nor keeps freed memory") {
  const StreamSeed streams(1);
  const Setup s;
  const size_t before = emulated::device_bytes_in_use();
  void* block = nullptr;
  REQUIRE(cudaMallocAsync(&block, 64, s.first) == cudaSuccess);
  REQUIRE(launch({1, 32, 0, s.first}, fails_kernel) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s.first) == cudaErrorLaunchFailure);
  void* other = nullptr;
  CHECK(cudaMallocAsync(&other, 64, s.first) == cudaErrorLaunchFailure);
  CHECK(emulated::device_bytes_in_use() == before + 64);
  CHECK(cudaFreeAsync(block, s.first) == cudaErrorLaunchFailure);
  CHECK(emulated::device_bytes_in_use() == before);
#ifdef __SANITIZE_ADDRESS__
  CHECK(__asan_address_is_poisoned(block));
#endif
  emulated::set_stream_seed(1);  // clears the failure, but not the thread's last error
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
}

TEST_CASE("emulated: a graph runs in the order of the stream on which it is launched") {
  const auto wrong = [](bool with_event) {
    return seeds_deferred_where([&] {
      const Setup s;
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      REQUIRE(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
      s.set(0, 4, s.first);
      REQUIRE(cudaStreamEndCapture(s.first, &graph) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
      REQUIRE(cudaGraphLaunch(exec, s.first) == cudaSuccess);
      if (with_event) s.order(s.first, s.second);
      s.add(1, 0, s.second);
      const float value = s.value(1);
      REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
      REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
      return value != 4;
    });
  };
  CHECK(wrong(true) == 0);
  CHECK(wrong(false) >= 4);
}
