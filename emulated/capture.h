// Stream capture: calls on a captured stream record work, and each launch of the graph runs this
// work.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "emulated/deferred.h"

namespace emulated {

struct Capture;

/// A vector clock: for each stream of a capture, the number of the stream's operations before some
/// point of the capture.
using Clock = std::map<cudaStream_t, int64_t>;

/// The point in a capture at which an event was recorded. `capture` is null if the event was not
/// recorded in a capture.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  Clock clock;
};

/// True if the stream is captured, so that calls on it are recorded for a graph.
bool captured(cudaStream_t stream);

/// Work that runs in the order in which enqueue() receives it, even on different streams, such as
/// the calls of an NCCL communicator. Captured work instead runs in the order of its graph's
/// launches. Two threads must not use a sequence at the same time.
struct Sequence {
  SharedPoint latest;  // the point behind the latest deferred work; null if there was none
};
using Sequences = std::set<std::shared_ptr<Sequence>>;

/// If the stream is captured, records `work` as the graph's next node. Otherwise, if streams are
/// deferred, queues `work`. In all other cases runs `work` immediately. `work` belongs to all of
/// `sequences`.
cudaError_t enqueue(cudaStream_t stream, Work work, Kind kind = Kind::device,
                    const Sequences& sequences = {});

/// Counts one launch if emulated/control.h's count_launches is on.
void count_launch();

/// These functions return an error and invalidate the capture:
///  - check_not_captured(stream) if the stream is captured;
///  - check_no_capture_in_any_mode if the calling thread captures a stream. This is for calls that
///    conflict with any capture;
///  - check_no_capture likewise, unless the thread's mode is cudaStreamCaptureModeRelaxed. This is
///    for calls that CUDA names potentially unsafe;
///  - check_not_captured(point) if the point belongs to a capture.
/// `call` names the forbidden call in the error.
cudaError_t check_not_captured(cudaStream_t stream, const char* call);
cudaError_t check_no_capture_in_any_mode(const char* call);
cudaError_t check_no_capture(const char* call);
cudaError_t check_not_captured(const CapturedPoint& point, const char* call);

/// Returns the point that the stream has reached; its `capture` is null if the stream is not
/// captured.
CapturedPoint point_of(cudaStream_t stream);
/// Orders the stream's next captured work after the point. If only the point belongs to a capture,
/// the stream joins this capture. Does nothing if neither the stream nor the point belongs to a
/// capture. Returns an error if the stream is captured and the point does not belong to the same
/// capture, if the point's capture has ended, or if the null stream would join a capture.
cudaError_t wait_for_point(cudaStream_t stream, const CapturedPoint& point);

/// Add nodes that allocate and free memory of the graph.
cudaError_t capture_allocation(void** pointer, size_t bytes, cudaStream_t stream);
cudaError_t capture_free(void* pointer, cudaStream_t stream);
/// Allocate and free the device memory of a graph (emulated/memory.cpp).
cudaError_t allocate_graph_memory(void** pointer, size_t bytes);
void free_graph_memory(void* pointer);

}  // namespace emulated
