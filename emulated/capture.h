// Stream capture: what calls on a captured stream leave behind for the launches of the graph.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "emulated/runtime_api.h"

namespace emulated {

using Work = std::function<cudaError_t()>;

struct Capture;

/// For each stream of a capture how much of its work comes before some point.
using Clock = std::map<cudaStream_t, int64_t>;

/// Where an event was recorded, if that was in a capture.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  Clock clock;
};

/// Whether calls on the stream go into a graph.
bool captured(cudaStream_t stream);

/// Does `work` now, or where the stream is captured makes it the graph's next node.
cudaError_t enqueue(cudaStream_t stream, Work work);

/// Counts one launch, where emulated/control.h's count_launches is on.
void count_launch();

/// For calls that must wait for the stream: an error if it is captured, and the capture is then
/// invalid. So are the next two: for calls that CUDA forbids to a thread that captures, and for
/// waits for an event.
cudaError_t check_not_captured(cudaStream_t stream, const char* call);
cudaError_t check_no_capture(const char* call);
cudaError_t check_not_captured(const CapturedPoint& point, const char* call);

/// The point that the stream has come to; without a capture where it is not captured.
CapturedPoint point_of(cudaStream_t stream);
/// The stream's next work comes after the point: a stream may so join the point's capture.
cudaError_t wait_for_point(cudaStream_t stream, const CapturedPoint& point);

/// Memory nodes.
cudaError_t capture_allocation(void** pointer, size_t bytes, cudaStream_t stream);
cudaError_t capture_free(void* pointer, cudaStream_t stream);
/// Memory of the device for them, in emulated/memory.cpp.
cudaError_t allocate_graph_memory(void** pointer, size_t bytes);
void free_graph_memory(void* pointer);

}  // namespace emulated
