// The part of CUDA that core needs, declared without CUDA's headers and implemented by core/cuda/.
// A build without CUDA has the implementation in core/no_cuda/: no device exists, and calls that
// need a device throw.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/device.h"

namespace tessera {
class MemoryLedger;
}

namespace tessera::cuda {

/// Returns the reason why no GPU can be used, worded for use within an error message. Returns an
/// empty text if a GPU can be used.
std::string unusable();

/// The number of usable devices. If it is 0, unusable() says why.
int device_count();

/// The device's name, such as "NVIDIA H200, compute capability 9.0". Throws if there is no such
/// device.
std::string device_name(int index);
/// The device's number of multiprocessors, 132 for an H200. Throws if there is no such device.
int64_t multiprocessor_count(int index);
/// The device's UUID, which no other device has. Processes with different CUDA_VISIBLE_DEVICES can
/// have different devices under the same index. Throws if there is no such device.
std::array<int64_t, 2> device_uuid(int index);

/// Makes `index` the calling thread's device. A thread starts with device 0.
void use_device(int index);

/// The calling thread's current stream on a device, a cudaStream_t. This is the stream of the
/// innermost StreamScope if that scope is for the device. Otherwise it is the device's compute
/// stream, which all threads share.
void* current_stream(int index);

/// While this object is the calling thread's innermost StreamScope, the thread's launches on
/// `device` go to `stream`.
class StreamScope {
 public:
  StreamScope(int device, void* stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  int device_before_;
  void* stream_before_;
};

/// Makes a new stream, a cudaStream_t, which lives as long as the process.
void* new_stream(int index);

/// The device's stream for copies, a cudaStream_t. Its copies can overlap with the kernels on the
/// compute stream.
void* copy_stream(int index);

/// Marks a point in the calling thread's current stream on a device. Copies of an Event mark the
/// same point.
class Event {
 public:
  explicit Event(int index);
  /// Makes the calling thread's current stream on the event's device wait for the point. The host
  /// does not wait.
  void wait() const;
  /// The host waits until the device has reached the point. Throws as cuda::synchronize does.
  void synchronize() const;
  /// True if the device has reached the point. Throws if the device has failed, and in the capture
  /// of a graph.
  bool passed() const;
  /// True if the device has reached the point, or if the device has failed. Never throws, so
  /// destructors call over() instead of passed(). False for a point in a captured stream, during
  /// the capture and afterwards: launches of the graph do not mark the point.
  bool over() const;

 private:
  int index_;
  bool is_captured_ = false;  // true if the point is in a captured stream
  std::shared_ptr<void> event_;
};

/// Allocates device memory in the order of `stream`. Returns nullptr if there is not enough memory.
void* allocate(int index, int64_t bytes, void* stream);
/// Frees device memory in the order of `stream`, the stream on which it was allocated. If other
/// streams have used the memory, the caller must first make `stream` wait for their work (Event).
/// `captured` is the result of captured_memory() at the allocation.
void free(int index, void* data, void* stream, const MemoryLedger* captured);
/// Waits for the current stream, and hands unused memory of the device's pools back to the system.
void release_cached_memory(int index);

/// Allocates pinned host memory, so that the host need not wait for copies between this memory and
/// a device. Returns nullptr if there is not enough memory. free_pinned waits for the calling
/// thread's device (use_device), because copies may be in flight.
void* allocate_pinned(int64_t bytes);
void free_pinned(void* data);

/// Zeroes device memory in the order of the current stream.
void zero(int index, void* data, int64_t bytes);

/// Starts a copy on the current stream of `index`; the host does not wait. Both ends may be device
/// or host memory. Host memory must be pinned. Until the copy is done, the host must not change the
/// source, nor read or write the destination. To know when the copy is done, make an Event after
/// the call.
void copy(int index, void* to, const void* from, int64_t bytes);

/// Copies on the current stream of `index`, and waits for that stream. Both ends may be device
/// memory or any host memory. Throws as cuda::synchronize does.
void copy_and_wait(int index, void* to, const void* from, int64_t bytes);

/// The calling thread waits for its current stream on `index`. Throws if a kernel has reported
/// wrong input (core/cuda/fault.h).
void synchronize(int index);

/// A CUDA graph. The constructor captures the work that a body puts on the current stream, and
/// launch() submits all of this work in one call. So the host pays for one launch of the graph, and
/// not for a launch of each kernel (docs/cuda.md). During the capture the body runs once on the
/// host, and none of its work runs on the device.
///
///   step();                              // once without a graph: libraries make their handles
///   cuda::Graph graph(0, step);          // captured, and checked
///   graph.launch();                      // repeats the captured work without calling step()
///
/// A launch repeats the captured work with the same addresses, sizes and kernel arguments. So a
/// body reads its input from memory that lives as long as the graph, and writes its results to such
/// memory. Only dropout differs from launch to launch: its masks depend on the dropout_state() of
/// the thread that calls launch(). A body must follow these rules:
///  - It frees all memory that it allocates, because this memory belongs to the graph.
///  - It frees no memory that was allocated before the capture, because the launches use this
///    memory.
///  - It never lets the host wait (Tensor::item, to, copy_from, values; synchronize).
///  - Before it uses another stream, it makes that stream wait for an Event of the captured stream.
///    At its end, it makes the captured stream wait for an Event of each other stream.
///  - At each of its dropouts, dropout_state() is the state with which the capture began.
/// The capture throws if the body breaks one of these rules.
class Graph {
 public:
  Graph(int index, const std::function<void()>& body);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Launches the graph on the current stream. Launches run one after the other. Raises the peaks
  /// of the device's memory ledger as the body's allocations would. If the body has a dropout,
  /// throws unless the current stream is the stream of the capture. The reason is that all launches
  /// write their dropout state to the same device memory. On one stream, each write comes after all
  /// earlier launches, so each launch reads its own state.
  void launch();

 private:
  struct Captured;
  std::unique_ptr<Captured> captured_;
};

/// Throws if the calling thread is capturing a graph, because a graph cannot contain `call`.
void refuse_in_capture(const char* call);

/// Returns the memory ledger of the calling thread's running capture. The ledger counts the memory
/// that the body has allocated and not freed. Returns nullptr outside of a capture.
std::shared_ptr<MemoryLedger> captured_memory();

/// For tests: makes device memory accessible to the host, except memory that a graph allocates.
/// From then on the host waits for the end of each launch. Must be called before the first
/// allocation.
void share_memory_with_host();
bool memory_is_shared_with_host();

}  // namespace tessera::cuda
