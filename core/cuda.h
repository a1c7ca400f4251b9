// What core asks of CUDA, in terms that need none of its headers. core/cuda/ answers, or in a build
// without CUDA core/no_cuda/, which has no device and says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/device.h"

namespace tessera {
class MemoryLedger;
}

namespace tessera::cuda {

/// Why no GPU can be used, as part of a sentence; empty where one can.
std::string unusable();

/// Usable devices; 0 where unusable() says why.
int device_count();

/// "NVIDIA H200, compute capability 9.0". Throws for a device that is not there.
std::string device_name(int index);
/// 132 for an H200. Throws for a device that is not there.
int64_t multiprocessor_count(int index);

/// Makes `index` the calling thread's device. A thread starts with device 0.
void use_device(int index);

/// The stream of the calling thread on a device: the one of a StreamScope, or the device's compute
/// stream, which all threads share. A cudaStream_t.
void* current_stream(int index);

/// Launches of the calling thread on `device` go to `stream` as long as the scope lives.
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

/// A stream of its own, which lives as long as the process. A cudaStream_t.
void* new_stream(int index);

/// The device's stream for copies that go on beside its compute stream. A cudaStream_t.
void* copy_stream(int index);

/// A point in the calling thread's current stream. Copies are the same point.
class Event {
 public:
  explicit Event(int index);
  /// What the calling thread launches from now on comes after the point. The host does not wait.
  void wait() const;
  /// The host waits until the device has come to the point. Throws as cuda::synchronize does.
  void synchronize() const;
  /// Whether it has.
  bool passed() const;

 private:
  int index_;
  std::shared_ptr<void> event_;
};

/// Device memory in the order of `stream`; nullptr where there is not enough. Freed in the order
/// of the same stream: what other streams do with it must come before, by events. `captured`:
/// captured_memory() as it was allocated.
void* allocate(int index, int64_t bytes, void* stream);
void free(int index, void* data, void* stream, const MemoryLedger* captured);
/// Hands unused memory of the device's pools back to the system.
void release_cached_memory(int index);

/// Host memory that devices copy from and to directly, while the host goes on; nullptr where there
/// is not enough. The host waits for the device before it is freed: copies may be under way.
void* allocate_pinned(int64_t bytes);
void free_pinned(void* data);

/// Zeroes device memory in the order of the current stream.
void zero(int index, void* data, int64_t bytes);

/// Copies between any two places in the order of the current stream of `index`; the host goes on.
/// What lies on the host must be pinned, and stay as it is until an Event behind the copy.
void copy(int index, void* to, const void* from, int64_t bytes);

/// Copies between any two places in the order of the current stream of `index`, and waits for it.
void copy_and_wait(int index, void* to, const void* from, int64_t bytes);

/// The calling thread waits for the current stream of `index`. Throws what a kernel found wrong in
/// its input (core/cuda/fault.h).
void synchronize(int index);

/// What a body launches, captured to be launched again as one: a step's many launches then cost the
/// host one (docs/cuda.md). The body runs once, on the host, and nothing of it on the device.
///
///   step();                              // once without a graph: libraries make their handles
///   cuda::Graph graph(0, step);          // captured, and checked
///   graph.launch();                      // as step() would, but nothing of it runs on the host
///
/// A launch has what the capture had: addresses, sizes, arguments of kernels. Only dropout draws
/// as the launching thread's dropout_state() says. So a body takes its input from memory that lives
/// as long as the graph, leaves its results in such memory, and
///  - frees what it allocates, and nothing else: its memory belongs to the graph;
///  - never lets the host wait (Tensor::item, to, copy_from, values; synchronize);
///  - has other streams wait for an Event of the current one first, and waits for them last;
///  - runs under one dropout_state().
/// Each of these is checked while capturing, and an error.
class Graph {
 public:
  Graph(int index, const std::function<void()>& body);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Launches it on the current stream; launches come after each other. The device's ledger has the
  /// peaks that the body would have caused.
  void launch();

 private:
  struct Captured;
  std::unique_ptr<Captured> captured_;
};

/// Throws while the calling thread captures a graph: `call` is nothing that a graph can do.
void refuse_in_capture(const char* call);

/// What the calling thread's running capture has allocated and not freed; nullptr outside of one.
std::shared_ptr<MemoryLedger> captured_memory();

/// For tests: device memory that the host may touch, and launches that return when they are done.
/// Before the first allocation.
void share_memory_with_host();
bool memory_is_shared_with_host();

}  // namespace tessera::cuda
