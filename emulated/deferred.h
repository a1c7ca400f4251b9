// Deferred streams. As on a GPU, work given to a stream is queued and runs later, in order. It runs
// on a thread of the emulator, at the latest when the host waits for the work or when the work has
// been queued for a while.
//
// The order between streams is fixed only by events, by the null stream's implicit waits, and by
// NCCL: the calls of one communicator, and the launches of graphs with such calls, run in the order
// in which they were made (Sequence in emulated/capture.h). Where these leave the order open, a
// seed decides which stream runs next. So code that lacks a synchronisation gives a different
// result with some seed. Seeds:
//   0      streams are not deferred: a call does all of its work (the default)
//   odd    a wait or query of the host runs only the work that it needs
//   even   a wait or query of the host also runs work of other streams, in a random order
// The environment variable TESSERA_EMULATED_STREAMS sets the first seed of a process, and
// set_stream_seed (emulated/control.h) changes the seed.
//
// A failure of deferred work is sticky, as in CUDA: all later calls that queue work or wait return
// the failure, until set_stream_seed clears it. cudaEventRecord alone returns success.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "emulated/runtime_api.h"

namespace emulated {

using Work = std::function<cudaError_t()>;

/// The kind of a piece of work. Only device work may access device memory.
enum class Kind {
  device,
  ranks,           // device work that waits for other ranks; other streams run meanwhile
  host,            // must not access device memory
  host_and_ranks,  // host work that waits for other ranks; other streams run meanwhile
};

/// Runs work immediately. If the work is of kind device or ranks, device memory is accessible
/// meanwhile.
cudaError_t run_now(Kind kind, const Work& work);

/// A point in a stream's work.
struct Point;
using SharedPoint = std::shared_ptr<Point>;

bool streams_are_deferred();

/// Queues work; streams must be deferred.
cudaError_t defer(cudaStream_t stream, Kind kind, Work work);

/// Returns the point behind all work queued on the stream so far. If streams are not deferred, the
/// point is already passed.
SharedPoint point_behind(cudaStream_t stream);
/// Makes later work of the stream wait for the point.
cudaError_t defer_behind(cudaStream_t stream, const SharedPoint& point);

/// True if the work before the point (passed) or all work of the stream (is_idle) is done, or if
/// deferred work has failed. Otherwise the emulator runs some of this work in the background, as a
/// GPU would between two queries. If the point was passed, `when` receives the time of passing.
bool passed(const SharedPoint& point, std::chrono::steady_clock::time_point* when = nullptr);
bool is_idle(cudaStream_t stream);

/// Make the host wait for a point, for a stream's work so far, or for the work of all streams of a
/// device. If deferred work fails or has failed, return the failure without waiting further.
cudaError_t wait_for(const SharedPoint& point);
cudaError_t wait_for_stream(cudaStream_t stream);
cudaError_t wait_for_device(int device);

/// True if work of the device is running. After a failure, no further work begins.
bool is_running(int device);

/// The queued work of a stream. Work that is left when the stream is destroyed still runs. If
/// `waits_for_null_stream` is true, the stream and the null stream of its device wait for each
/// other: the work of these two streams runs in the order in which it was queued.
class Queue;
std::shared_ptr<Queue> new_queue(int device, bool is_null, bool waits_for_null_stream);
/// The queue of an existing stream, or of the current device's null stream (emulated/streams.cpp).
std::shared_ptr<Queue> queue_of(cudaStream_t stream);

}  // namespace emulated
