// Stream capture: calls on a captured stream record work, which launches of the graph run.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "emulated/runtime_api.h"

namespace emulated {

using Work = std::function<cudaError_t()>;

struct Capture;

/// A vector clock: for each stream of a capture, how much of its work comes before some point.
using Clock = std::map<cudaStream_t, int64_t>;

/// Where an event was recorded, if that was in a capture.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  Clock clock;
};

/// True if calls on the stream go into a graph.
bool captured(cudaStream_t stream);

/// Runs `work` now, or records it as the graph's next node if the stream is captured.
cudaError_t enqueue(cudaStream_t stream, Work work);

/// Counts one launch if emulated/control.h's count_launches is on.
void count_launch();

/// These return an error, and invalidate the capture, if a call is not allowed during a capture: a
/// call that must wait for a captured stream, a call that CUDA forbids to a thread that captures,
/// or a wait for an event that was recorded in a capture.
cudaError_t check_not_captured(cudaStream_t stream, const char* call);
cudaError_t check_no_capture(const char* call);
cudaError_t check_not_captured(const CapturedPoint& point, const char* call);

/// The point that the stream has reached; its `capture` is null if the stream is not captured.
CapturedPoint point_of(cudaStream_t stream);
/// Orders the stream's next work after the point. A stream may join the point's capture in this
/// way.
cudaError_t wait_for_point(cudaStream_t stream, const CapturedPoint& point);

/// Record the allocation and the free of a graph's memory.
cudaError_t capture_allocation(void** pointer, size_t bytes, cudaStream_t stream);
cudaError_t capture_free(void* pointer, cudaStream_t stream);
/// Allocate and free the device memory of these nodes (emulated/memory.cpp).
cudaError_t allocate_graph_memory(void** pointer, size_t bytes);
void free_graph_memory(void* pointer);

}  // namespace emulated
