// Deferred streams. Work given to a stream is queued and runs later on a thread of the emulator, as
// on a GPU: at the latest when the host waits for it, or when it has been queued for a while. The
// order is that of each stream, of events, and of the null stream's implicit waits. Beyond these, a
// seed decides which stream goes on. So work whose order nothing ensures has another result under
// some seed:
//   0      streams are not deferred: a call does all of its work, the default
//   odd    only work that the host waits for runs, and what this work has to wait for
//   even   any stream that can go on does, in a random order
// The environment variable TESSERA_EMULATED_STREAMS sets the seed that a process begins with, and
// set_stream_seed (emulated/control.h) changes it. A failure of deferred work sticks, as CUDA's do:
// all later calls that queue work or wait return it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "emulated/runtime_api.h"

namespace emulated {

using Work = std::function<cudaError_t()>;

/// How work runs. Work of the device may access device memory.
enum class Kind {
  device,
  ranks,           // of the device, and waits for other ranks; meanwhile the other streams go on
  host,            // must not access device memory
  host_and_ranks,  // a host's that waits for other ranks
};

/// Does work now, with the access to memory that its kind has.
cudaError_t run_now(Kind kind, const Work& work);

/// A point in a stream's work.
struct Point;
using SharedPoint = std::shared_ptr<Point>;

bool streams_are_deferred();

/// Queues work; streams must be deferred.
cudaError_t defer(cudaStream_t stream, Kind kind, Work work);

/// Returns the point behind the work that the stream has so far. If streams are not deferred, it
/// has been passed.
SharedPoint point_behind(cudaStream_t stream);
/// Later work of the stream waits for the point.
cudaError_t defer_behind(cudaStream_t stream, const SharedPoint& point);

/// True if the work before a point, or all work of a stream, is done. If it is not, the device does
/// some of it, as it would in the time between two questions. `when` receives the time at which the
/// point was passed.
bool passed(const SharedPoint& point, std::chrono::steady_clock::time_point* when = nullptr);
bool is_idle(cudaStream_t stream);

/// The host waits: for a point, for a stream's work so far, or for that of all streams of a device.
/// Return the failure of deferred work.
cudaError_t wait_for(const SharedPoint& point);
cudaError_t wait_for_stream(cudaStream_t stream);
cudaError_t wait_for_device(int device);

/// The work of a stream. What remains is done after the stream has been destroyed. A null stream
/// and the streams that wait for it run their work in the order of the calls.
class Queue;
std::shared_ptr<Queue> new_queue(int device, bool is_null, bool waits_for_null_stream);
/// The queue of an existing stream, or of the current device's null stream (emulated/streams.cpp).
std::shared_ptr<Queue> queue_of(cudaStream_t stream);

}  // namespace emulated
