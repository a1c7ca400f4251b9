// Tests stream capture and graphs: the effects of a launch, and the calls that a capture refuses.
#include <algorithm>
#include <cmath>
#include <thread>

#include "core/context.h"
#include "core/cuda.h"
#include "core/ops.h"
#include "core/ops/copy.h"
#include "tests/emulated/launch.h"
#include "tests/support/catch.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

__global__ void add_kernel(float* to, const float* from, float value) {
  to[threadIdx.x] = from[threadIdx.x] + value;
}

void check_refused(cudaError_t error, cudaError_t expected, const char* why) {
  CHECK(error == expected);
  CHECK_THAT(cudaGetErrorString(error), ContainsSubstring(why));
}

// Two streams, an event, and three buffers of 4 floats: two in managed memory, and one in pinned
// host memory.
struct Setup {
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t event = nullptr;
  float *in = nullptr, *out = nullptr, *pinned = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;

  Setup() {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaEventCreate(&event) == cudaSuccess);
    REQUIRE(cudaMallocManaged(&in, 16) == cudaSuccess);
    REQUIRE(cudaMallocManaged(&out, 16) == cudaSuccess);
    REQUIRE(cudaMallocHost(&pinned, 16) == cudaSuccess);
    std::fill_n(in, 4, 1.0f);
    std::fill_n(out, 4, 0.0f);
  }
  ~Setup() {
    if (exec != nullptr) CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaStreamDestroy(other) == cudaSuccess);
    CHECK(cudaFree(in) == cudaSuccess);
    CHECK(cudaFree(out) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
  }
  void begin() const {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  }
  cudaError_t end() { return cudaStreamEndCapture(stream, &graph); }
  void make() {
    REQUIRE(end() == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
  }
  cudaError_t add(float* to, const float* from, float value, cudaStream_t on) const {
    return launch({1, 4, 0, on}, add_kernel, to, from, value);
  }
  // Checks that a call was refused and has invalidated the capture.
  void breaks(cudaError_t error, cudaError_t expected, const char* why) {
    check_refused(error, expected, why);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(add(out, in, 1, stream) == cudaErrorStreamCaptureInvalidated);
    CHECK(end() == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    CHECK(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusNone);
  }
};

}  // namespace

TEST_CASE("emulated: a graph does what was captured, at each launch and not before") {
  Setup s;
  const size_t before = emulated::device_bytes_in_use();
  s.begin();
  float* scratch = nullptr;
  {
    float value = 2;  // the graph keeps the value of an argument
    REQUIRE(cudaMallocAsync(&scratch, 16, s.stream) == cudaSuccess);
    CHECK(s.add(scratch, s.in, value, s.stream) == cudaSuccess);
    value = 100;
  }
  // The other stream joins the capture by an event, and adds. Then the first stream waits for the
  // addition.
  REQUIRE(cudaEventRecord(s.event, s.stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(s.other, s.event) == cudaSuccess);
  CHECK(s.add(s.out, scratch, 3, s.other) == cudaSuccess);
  REQUIRE(cudaEventRecord(s.event, s.other) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(s.stream, s.event) == cudaSuccess);
  REQUIRE(cudaFreeAsync(scratch, s.stream) == cudaSuccess);
  CHECK(cudaMemcpyAsync(s.pinned, s.out, 8, cudaMemcpyDefault, s.stream) == cudaSuccess);
  CHECK(cudaMemsetAsync(s.pinned + 2, 0, 8, s.stream) == cudaSuccess);
  s.make();
  CHECK(s.out[0] == 0);
  CHECK(std::isnan(s.pinned[2]));
  CHECK(emulated::device_bytes_in_use() == before + 16);

  for (const float x : {1.0f, 10.0f}) {
    std::fill_n(s.in, 4, x);
    CHECK(cudaGraphLaunch(s.exec, s.stream) == cudaSuccess);
    CHECK(s.out[3] == x + 5);
    CHECK(s.pinned[1] == x + 5);
    CHECK(s.pinned[2] == 0);
    float freed = 0;
    CHECK(cudaMemcpy(&freed, scratch, 4, cudaMemcpyDefault) == cudaSuccess);
    CHECK(std::isnan(freed));
  }
  cudaGraphExec_t second = nullptr;
  check_refused(cudaGraphInstantiate(&second, s.graph), cudaErrorNotSupported, "once at a time");
  REQUIRE(cudaGraphExecDestroy(s.exec) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&s.exec, s.graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(s.graph) == cudaSuccess);
  s.graph = nullptr;
  CHECK(cudaGraphLaunch(s.exec, s.stream) == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(s.exec) == cudaSuccess);
  s.exec = nullptr;
  CHECK(emulated::device_bytes_in_use() == before);
}

TEST_CASE("emulated: graphs that leak memory, or free memory not their own, are refused") {
  Setup s;
  s.begin();
  void* kept = nullptr;
  REQUIRE(cudaMallocAsync(&kept, 16, s.stream) == cudaSuccess);
  s.make();
  CHECK(cudaGraphLaunch(s.exec, s.stream) == cudaSuccess);
  check_refused(cudaGraphLaunch(s.exec, s.stream), cudaErrorInvalidValue, "not freed yet");

  Setup other;
  void* older = nullptr;
  void* twice = nullptr;
  REQUIRE(cudaMallocAsync(&older, 16, other.stream) == cudaSuccess);
  other.begin();
  check_refused(cudaFreeAsync(older, other.stream), cudaErrorInvalidValue, "does not hold");
  REQUIRE(cudaMallocAsync(&twice, 16, other.stream) == cudaSuccess);
  CHECK(cudaFreeAsync(twice, other.stream) == cudaSuccess);
  check_refused(cudaFreeAsync(twice, other.stream), cudaErrorInvalidValue, "does not hold");
  other.make();
  CHECK(cudaFreeAsync(older, other.stream) == cudaSuccess);
}

TEST_CASE("emulated: calls that break a capture") {
  Setup s;
  float* memory = nullptr;
  float host[4] = {};
  const auto breaks = [&](cudaError_t expected, const char* why, const auto& call) {
    s.begin();
    s.breaks(call(), expected, why);
  };
  constexpr cudaError_t unsupported = cudaErrorStreamCaptureUnsupported;
  breaks(unsupported, "cudaStreamSynchronize on a",
         [&] { return cudaStreamSynchronize(s.stream); });
  breaks(unsupported, "cudaStreamQuery on a", [&] { return cudaStreamQuery(s.stream); });
  breaks(unsupported, "cudaDeviceSynchronize by", [] { return cudaDeviceSynchronize(); });
  breaks(unsupported, "cudaEventQuery by", [&] { return cudaEventQuery(s.event); });
  breaks(unsupported, "cudaMalloc by a thread", [&] { return cudaMalloc(&memory, 16); });
  breaks(unsupported, "cudaMallocManaged by", [&] { return cudaMallocManaged(&memory, 16); });
  breaks(unsupported, "cudaFree by", [&] { return cudaFree(s.in); });
  breaks(unsupported, "cudaHostAlloc by", [&] { return cudaMallocHost(&memory, 16); });
  breaks(unsupported, "cudaFreeHost by", [&] { return cudaFreeHost(s.pinned); });
  breaks(unsupported, "cudaMemcpy by",
         [&] { return cudaMemcpy(s.out, s.in, 16, cudaMemcpyDefault); });
  breaks(unsupported, "cudaMemset by", [&] { return cudaMemset(s.out, 0, 16); });
  breaks(unsupported, "pageable memory",
         [&] { return cudaMemcpyAsync(s.out, host, 16, cudaMemcpyDefault, s.stream); });
  const auto record = [&](cudaStream_t stream) {
    REQUIRE(cudaEventRecord(s.event, stream) == cudaSuccess);
  };
  breaks(cudaErrorCapturedEvent, "cudaEventSynchronize of an event", [&] {
    record(s.stream);
    return cudaEventSynchronize(s.event);
  });
  breaks(cudaErrorCapturedEvent, "cudaEventQuery of an event", [&] {
    record(s.stream);
    return cudaEventQuery(s.event);
  });
  breaks(cudaErrorStreamCaptureIsolation, "not recorded in its capture", [&] {
    record(s.other);
    return cudaStreamWaitEvent(s.stream, s.event);
  });
  breaks(cudaErrorStreamCaptureUnmatched, "begun on another stream", [&] {
    record(s.stream);
    REQUIRE(cudaStreamWaitEvent(s.other, s.event) == cudaSuccess);
    return cudaStreamEndCapture(s.other, &s.graph);
  });
  check_refused(cudaStreamWaitEvent(s.other, s.event), cudaErrorCapturedEvent, "that has ended");
  Setup second;
  breaks(cudaErrorStreamCaptureMerge, "another capture", [&] {
    second.begin();
    record(s.stream);
    return cudaStreamWaitEvent(second.stream, s.event);
  });
  CHECK(second.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("emulated: in relaxed mode a thread that captures may make other calls") {
  Setup s;
  REQUIRE(cudaEventRecord(s.event, s.other) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(s.event) == cudaSuccess);
  s.begin();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeGlobal);
  CHECK(cudaEventQuery(s.event) == cudaSuccess);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(cudaStreamQuery(s.stream) == cudaErrorStreamCaptureUnsupported);
  CHECK(s.end() == cudaErrorStreamCaptureInvalidated);
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeRelaxed);
  s.begin();
  s.breaks(cudaEventQuery(s.event), cudaErrorStreamCaptureUnsupported,
           "cudaEventQuery by a thread");
}

TEST_CASE("emulated: calls that conflict with a capture break it in relaxed mode too") {
  Setup s;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  s.begin();
  s.breaks(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported, "cudaDeviceSynchronize by");
  s.begin();
  REQUIRE(cudaEventRecord(s.event, s.stream) == cudaSuccess);
  s.breaks(cudaEventQuery(s.event), cudaErrorCapturedEvent, "cudaEventQuery of an event");
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeRelaxed);
}

TEST_CASE("emulated: a mode of captures that does not exist is refused and changes nothing") {
  constexpr const char* call = "cudaThreadExchangeStreamCaptureMode: there is no such mode";
  check_refused(cudaThreadExchangeStreamCaptureMode(nullptr), cudaErrorInvalidValue, call);
  auto mode = static_cast<cudaStreamCaptureMode>(3);
  check_refused(cudaThreadExchangeStreamCaptureMode(&mode), cudaErrorInvalidValue, call);
  CHECK(mode == static_cast<cudaStreamCaptureMode>(3));
  mode = cudaStreamCaptureModeGlobal;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeGlobal);
}

TEST_CASE("emulated: how a capture begins and ends") {
  Setup s;
  constexpr auto mode = cudaStreamCaptureModeThreadLocal;
  check_refused(cudaStreamBeginCapture(nullptr, mode), cudaErrorStreamCaptureUnsupported,
                "null stream");
  check_refused(s.end(), cudaErrorIllegalState, "not captured");
  s.begin();
  check_refused(cudaStreamBeginCapture(s.stream, mode), cudaErrorIllegalState, "already");
  std::thread([&] {
    CHECK(cudaStreamEndCapture(s.stream, &s.graph) == cudaErrorStreamCaptureWrongThread);
    CHECK(cudaFree(nullptr) == cudaSuccess);  // allowed: this thread captures nothing
  }).join();
  REQUIRE(cudaEventRecord(s.event, s.stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(s.other, s.event) == cudaSuccess);
  CHECK(s.add(s.out, s.in, 1, s.other) == cudaSuccess);
  check_refused(s.end(), cudaErrorStreamCaptureUnjoined, "does not wait for it");
  CHECK(s.add(s.out, s.in, 1, s.other) == cudaSuccess);
  CHECK(s.out[0] == 2);

  s.begin();
  REQUIRE(cudaEventRecord(s.event, s.stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(s.other, s.event) == cudaSuccess);
  s.make();  // no work was captured on `other`, so `stream` need not wait for it
  CHECK(cudaGraphLaunch(s.exec, s.other) == cudaSuccess);
}

TEST_CASE("emulated: cuda::Graph with device memory that the host cannot access") {
  using namespace tessera;
  const Device device{DeviceType::cuda, 0};
  const size_t before = emulated::device_bytes_in_use();
  {
    const Tensor x = Tensor::full({4, 4}, 3).to(device);
    const Tensor y = Tensor::empty({4, 4}, DType::f32, device);
    const auto refused = [](const auto& body, const char* why) {
      CHECK_THROWS_WITH(cuda::Graph(0, body), ContainsSubstring(why));
    };
    refused([&] { (void)ops::matmul(x, x); }, "run the captured code once before the capture");
    Tensor freed = Tensor::empty({4}, DType::f32, device);
    Tensor kept;
    const size_t held = emulated::device_bytes_in_use();
    refused([&] { freed = {}; }, "frees 1 blocks");
    CHECK(emulated::device_bytes_in_use() == held - 16);
    refused([&] { kept = ops::scale(x, 2); }, "allocates 64 bytes");
    kept = {};
    CHECK(emulated::device_bytes_in_use() == held - 16);

    const auto body = [&] {
      kernels::copy(current_context(device), y, ops::matmul(ops::scale(x, 2), x));
    };
    body();
    cuda::Graph graph(0, body);
    x.copy_from(Tensor::full({4, 4}, 1));
    graph.launch();
    CHECK(y.to_host().data<float>()[0] == 8);
  }
  CHECK(emulated::device_bytes_in_use() == before);
}
