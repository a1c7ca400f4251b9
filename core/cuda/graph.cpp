// CUDA graphs: their capture and launch, and the checks of the rules in core/cuda.h.
#include "core/cuda/graph.h"

#include <algorithm>
#include <string>

#include "core/cuda.h"
#include "core/cuda/check.h"
#include "core/error.h"

namespace tessera::cuda {

namespace {

thread_local Capture* running = nullptr;

/// Runs the body and captures its launches on `stream`. If the body throws, the capture is ended
/// and the stream can be used as before.
cudaGraph_t capture(cudaStream_t stream, Capture& capture, const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  TESSERA_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  running = &capture;
  try {
    body();
  } catch (...) {
    running = nullptr;
    (void)cudaStreamEndCapture(stream, &graph);  // the exception says more than this call's error
    (void)cudaGetLastError();
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    throw;
  }
  running = nullptr;
  TESSERA_CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

void free_delayed(int index, Capture& capture) {
  for (const auto& [data, stream] : capture.freed) free(index, data, stream, nullptr);
}

void check_memory(const Capture& capture) {
  TESSERA_CHECK(capture.freed.empty(),
                "graph: its body frees {} blocks of memory that it has not allocated and that the "
                "graph would still use; keep them alive as long as the graph",
                capture.freed.size());
  std::string kept;
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    const int64_t bytes = capture.memory->current(category);
    if (bytes == 0) continue;
    kept += fmt::format("{}{} bytes of {}", kept.empty() ? "" : ", ", bytes,
                        category_name(category));
  }
  TESSERA_CHECK(kept.empty(),
                "graph: its body allocates {} and does not free it; allocate what outlives the "
                "body before the capture",
                kept);
}

}  // namespace

Capture* running_capture() { return running; }

void check_captured(void* stream, const char* name) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TESSERA_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  TESSERA_CHECK(status != cudaStreamCaptureStatusNone,
                "{}: on a stream that is not in the running capture of a graph; let this stream "
                "first wait for an event of the captured stream",
                name);
}

const DropoutDraws* captured_dropout(const DropoutState& state, int64_t samples) {
  if (running == nullptr) return nullptr;
  TESSERA_CHECK(state == running->dropout,
                "dropout: seed {}, step {} and first sample {} in a graph whose capture began with "
                "{}, {} and {}; the state must not change within a graph",
                state.seed, state.step, state.first_sample, running->dropout.seed,
                running->dropout.step, running->dropout.first_sample);
  running->samples = std::max(running->samples, samples);
  return static_cast<const DropoutDraws*>(running->draws->data());
}

void refuse_in_capture(const char* call) {
  TESSERA_CHECK(running == nullptr,
                "{}: in the capture of a graph, whose launches run without the host; move the call "
                "out of the captured code",
                call);
}

std::shared_ptr<MemoryLedger> captured_memory() {
  return running == nullptr ? nullptr : running->memory;
}

struct Graph::Captured {
  Device device;
  void* stream = nullptr;  // of the capture
  Capture capture;
  cudaGraph_t graph = nullptr;  // keeps the addresses of its memory reserved
  cudaGraphExec_t executable = nullptr;

  ~Captured() {
    // Launches in flight still complete. Errors are ignored, because a destructor cannot report
    // them.
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
};

Graph::Graph(int index, const std::function<void()>& body)
    : captured_(std::make_unique<Captured>()) {
  refuse_in_capture("Graph");
  Captured& made = *captured_;
  made.device = {DeviceType::cuda, index};
  made.stream = current_stream(index);
  made.capture.draws = allocate(sizeof(DropoutDraws), Category::workspace, made.device);
  try {
    made.graph = capture(static_cast<cudaStream_t>(made.stream), made.capture, body);
  } catch (...) {
    free_delayed(index, made.capture);
    throw;
  }
  free_delayed(index, made.capture);
  check_memory(made.capture);
  if (made.capture.samples == 0) made.capture.draws.reset();
  // The device's pool may cache freed memory, which a graph cannot use. Hands this memory back to
  // the system before the graph allocates its own.
  release_cached_memory(index);
  TESSERA_CUDA(cudaGraphInstantiate(&made.executable, made.graph, 0));
}

Graph::~Graph() = default;

void Graph::launch() {
  refuse_in_capture("Graph::launch");
  const Capture& capture = captured_->capture;
  const Context context = current_context(captured_->device);
  if (capture.samples > 0) {
    const DropoutState& state = dropout_state();
    state.check_unambiguous();
    TESSERA_CHECK(state.is_set(),
                  "dropout: a graph is launched while no step is running on this thread, so the "
                  "mask to draw is unknown; set dropout_state() before each launch");
    TESSERA_CHECK(state.has_samples(capture.samples),
                  "dropout: {} samples from sample {} of a step on, expected samples from 0 to "
                  "2^32 - 1",
                  capture.samples, state.first_sample);
    TESSERA_CHECK(
        context.stream == captured_->stream,
        "dropout: a graph is launched on another stream than that of its capture, so that "
        "an earlier launch could draw the mask of this one; launch it on the stream of "
        "its capture");
    // The stream runs this write after all previous launches, so each launch reads its own draws.
    store_draws(context, static_cast<DropoutDraws*>(capture.draws->data()), dropout_draws(state));
  }
  memory_ledger(captured_->device).add_passing(*capture.memory);
  TESSERA_CUDA(
      cudaGraphLaunch(captured_->executable, static_cast<cudaStream_t>(context.stream)));
  finish_call(context, "Graph::launch");
}

}  // namespace tessera::cuda
