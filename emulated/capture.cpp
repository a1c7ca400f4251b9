// Stream capture and graphs. A graph keeps the captured work in the order of the calls, and a
// launch runs the work in this order.
#include "emulated/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "emulated/errors.h"

namespace emulated {

namespace {

/// A block of a graph's memory. Its address stays the same until the graph is destroyed.
struct Block {
  size_t bytes = 0;
  /// True while the block is allocated. During the capture, the calls that allocate and free the
  /// block set this value. In a launch, the nodes recorded by these calls set it.
  bool in_use = false;
};

struct Node {
  Kind kind;
  Work work;
};

struct Nodes {
  std::vector<Node> work;
  Sequences sequences;  // those of all nodes
  std::map<void*, Block> blocks;
  bool instantiated = false;

  Nodes() = default;
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;
  ~Nodes() {
    for (const auto& [address, block] : blocks) free_graph_memory(address);
  }

  cudaError_t run() const {
    for (const Node& node : work) {
      if (const auto error = run_now(node.kind, node.work); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  /// Returns the kind of a launch of the whole graph. While work of this kind runs, device memory
  /// is not accessible, because host nodes must not access it. run() makes it accessible for each
  /// node of kind device or ranks.
  Kind kind() const {
    const bool waits = std::any_of(work.begin(), work.end(),
                                   [](const Node& node) { return node.kind == Kind::ranks; });
    return waits ? Kind::host_and_ranks : Kind::host;
  }

  cudaError_t use(void* address, bool in_use) {
    Block& block = blocks.at(address);
    if (block.in_use == in_use) {
      return failed(cudaErrorInvalidValue,
                    fmt::format("a graph {} memory that is {}", in_use ? "allocates" : "frees",
                                in_use ? "not freed yet" : "not allocated"));
    }
    block.in_use = in_use;
    // Fills the block with NaN, like all fresh memory. The block is filled after the free too, so
    // that a use after the free shows.
    std::memset(address, 0xFF, block.bytes);
    return cudaSuccess;
  }
};

}  // namespace

struct Capture {
  cudaStream_t origin = nullptr;
  std::thread::id thread;
  std::map<cudaStream_t, Clock> streams;
  std::shared_ptr<Nodes> nodes = std::make_shared<Nodes>();
  bool invalid = false;
  bool ended = false;
};

namespace {

using Shared = std::shared_ptr<Capture>;

// The mode of the calling thread (cudaThreadExchangeStreamCaptureMode).
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// All captures that have not ended, by their streams. The map is never destroyed, because objects
// of static lifetime may still make calls after main.
struct Captures {
  std::mutex mutex;
  std::map<cudaStream_t, Shared> by_stream;
};
Captures& captures() {
  static auto& one = *new Captures;
  return one;
}

Shared capture_of(cudaStream_t stream) {
  const std::lock_guard lock(captures().mutex);
  const auto found = captures().by_stream.find(stream);
  return found == captures().by_stream.end() ? nullptr : found->second;
}

cudaError_t invalidated(const Shared& capture, cudaError_t error, const std::string& why) {
  capture->invalid = true;
  return failed(error, why);
}

void end(const Shared& capture) {
  const std::lock_guard lock(captures().mutex);
  std::erase_if(captures().by_stream,
                [&](const auto& entry) { return entry.second == capture; });
  capture->ended = true;
  for (auto& [address, block] : capture->nodes->blocks) block.in_use = false;
}

/// True if the stream that began the capture waits for all captured work of the other streams.
bool joined(const Capture& capture) {
  const Clock& known = capture.streams.at(capture.origin);
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const auto& entry) {
    const auto& [stream, clock] = entry;
    const auto own = clock.find(stream);
    if (own == clock.end()) return true;  // no work was captured on `stream`
    const auto seen = known.find(stream);
    return seen != known.end() && seen->second >= own->second;
  });
}

/// Queues `work` behind the earlier work of all `sequences`.
cudaError_t defer_in(const Sequences& sequences, cudaStream_t stream, Kind kind, Work work) {
  for (const auto& sequence : sequences) {
    // If defer_behind fails, defer() below returns the same error.
    if (sequence->latest) (void)defer_behind(stream, sequence->latest);
  }
  const cudaError_t error = defer(stream, kind, std::move(work));
  if (error != cudaSuccess || sequences.empty()) return error;
  const SharedPoint behind = point_behind(stream);
  for (const auto& sequence : sequences) sequence->latest = behind;
  return cudaSuccess;
}

}  // namespace

bool captured(cudaStream_t stream) { return capture_of(stream) != nullptr; }

cudaError_t enqueue(cudaStream_t stream, Work work, Kind kind, const Sequences& sequences) {
  const Shared capture = capture_of(stream);
  if (!capture) {
    count_launch();
    return streams_are_deferred() ? defer_in(sequences, stream, kind, std::move(work))
                                  : run_now(kind, work);
  }
  if (capture->invalid) {
    return failed(cudaErrorStreamCaptureInvalidated, "an earlier call has broken the capture");
  }
  ++capture->streams[stream][stream];
  capture->nodes->work.push_back({kind, std::move(work)});
  capture->nodes->sequences.insert(sequences.begin(), sequences.end());
  return cudaSuccess;
}

cudaError_t check_not_captured(cudaStream_t stream, const char* call) {
  const Shared capture = capture_of(stream);
  if (!capture) return cudaSuccess;
  return invalidated(capture, cudaErrorStreamCaptureUnsupported,
                     fmt::format("{} on a captured stream", call));
}

cudaError_t check_no_capture(const char* call) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  return check_no_capture_in_any_mode(call);
}

cudaError_t check_no_capture_in_any_mode(const char* call) {
  const std::lock_guard lock(captures().mutex);
  for (const auto& [stream, capture] : captures().by_stream) {
    if (capture->thread != std::this_thread::get_id()) continue;
    return invalidated(capture, cudaErrorStreamCaptureUnsupported,
                       fmt::format("{} by a thread that captures", call));
  }
  return cudaSuccess;
}

cudaError_t check_not_captured(const CapturedPoint& point, const char* call) {
  if (!point.capture) return cudaSuccess;
  return invalidated(point.capture, cudaErrorCapturedEvent,
                     fmt::format("{} of an event that was recorded in a capture", call));
}

CapturedPoint point_of(cudaStream_t stream) {
  const Shared capture = capture_of(stream);
  if (!capture) return {};
  return {capture, capture->streams[stream]};
}

cudaError_t wait_for_point(cudaStream_t stream, const CapturedPoint& point) {
  const Shared own = capture_of(stream);
  if (!point.capture && !own) return cudaSuccess;
  if (!point.capture) {
    return invalidated(own, cudaErrorStreamCaptureIsolation,
                       "a captured stream waits for an event that was not recorded in its capture");
  }
  if (point.capture->ended) {
    return failed(cudaErrorCapturedEvent, "the event was recorded in a capture that has ended");
  }
  if (own && own != point.capture) {
    point.capture->invalid = true;
    return invalidated(own, cudaErrorStreamCaptureMerge, "the event belongs to another capture");
  }
  if (stream == nullptr) {
    return invalidated(point.capture, cudaErrorStreamCaptureUnsupported,
                       "the null stream cannot join a capture");
  }
  const std::lock_guard lock(captures().mutex);
  captures().by_stream[stream] = point.capture;
  Clock& clock = point.capture->streams[stream];
  for (const auto& [other, count] : point.clock) clock[other] = std::max(clock[other], count);
  return cudaSuccess;
}

cudaError_t capture_allocation(void** pointer, size_t bytes, cudaStream_t stream) {
  const std::shared_ptr<Nodes> nodes = capture_of(stream)->nodes;
  if (const auto error = allocate_graph_memory(pointer, bytes); error != cudaSuccess) return error;
  nodes->blocks[*pointer] = {bytes, true};
  // The work holds a plain pointer, because a shared pointer in the graph's own work would keep the
  // graph alive for ever.
  return enqueue(stream, [nodes = nodes.get(), address = *pointer] {
    return nodes->use(address, true);
  });
}

cudaError_t capture_free(void* pointer, cudaStream_t stream) {
  const Shared capture = capture_of(stream);
  const auto found = capture->nodes->blocks.find(pointer);
  if (found == capture->nodes->blocks.end() || !std::exchange(found->second.in_use, false)) {
    return failed(cudaErrorInvalidValue,
                  "cudaFreeAsync on a captured stream: the graph does not hold this memory");
  }
  return enqueue(stream, [nodes = capture->nodes.get(), pointer] {
    return nodes->use(pointer, false);
  });
}

}  // namespace emulated

using namespace emulated;

struct CUgraph_st {
  std::shared_ptr<Nodes> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<Nodes> nodes;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (stream == nullptr) {
    return failed(cudaErrorStreamCaptureUnsupported, "the null stream cannot be captured");
  }
  if (mode != cudaStreamCaptureModeThreadLocal) {
    return failed(cudaErrorNotSupported, "only captures of one thread are emulated");
  }
  if (captured(stream)) return failed(cudaErrorIllegalState, "the stream is captured already");
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->thread = std::this_thread::get_id();
  capture->streams[stream] = {};
  const std::lock_guard lock(captures().mutex);
  captures().by_stream[stream] = std::move(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const Shared capture = capture_of(stream);
  if (!capture) return failed(cudaErrorIllegalState, "the stream is not captured");
  if (capture->thread != std::this_thread::get_id()) {
    return failed(cudaErrorStreamCaptureWrongThread, "another thread has begun the capture");
  }
  if (capture->origin != stream) {
    return invalidated(capture, cudaErrorStreamCaptureUnmatched,
                       "the capture was begun on another stream");
  }
  end(capture);
  // Events may keep the capture alive. The nodes are moved out of the capture, so that events do
  // not keep the memory of the graph alive.
  auto nodes = std::exchange(capture->nodes, nullptr);
  if (capture->invalid) {
    return failed(cudaErrorStreamCaptureInvalidated, "an earlier call has broken the capture");
  }
  if (!joined(*capture)) {
    return failed(cudaErrorStreamCaptureUnjoined,
                  "a stream has joined the capture, but the stream that began the capture does not "
                  "wait for it");
  }
  *graph = new CUgraph_st{std::move(nodes)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  const Shared capture = capture_of(stream);
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr || *mode > cudaStreamCaptureModeRelaxed) {
    return failed(cudaErrorInvalidValue, fmt::format("{}: there is no such mode", __func__));
  }
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (flags != 0) return failed(cudaErrorNotSupported, "these flags of a graph are not emulated");
  if (!graph->nodes->blocks.empty() && std::exchange(graph->nodes->instantiated, true)) {
    return failed(cudaErrorNotSupported,
                  "a graph that allocates memory can be instantiated only once at a time");
  }
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (captured(stream)) {
    return failed(cudaErrorNotSupported, "a graph within a graph is not emulated");
  }
  return enqueue(
      stream, [nodes = exec->nodes] { return nodes->run(); }, exec->nodes->kind(),
      exec->nodes->sequences);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  exec->nodes->instantiated = false;
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaDeviceGraphMemTrim(int) { return cudaSuccess; }  // a graph keeps its memory
