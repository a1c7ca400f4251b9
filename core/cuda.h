// What core asks of CUDA, in terms that need none of its headers. core/cuda/ answers, or in a build
// without CUDA core/no_cuda/, which has no device and says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/device.h"

namespace tessera::cuda {

/// Why no GPU can be used, as part of a sentence; empty where one can.
std::string unusable();

/// Usable devices; 0 where unusable() says why.
int device_count();

/// "NVIDIA H200, compute capability 9.0". Throws for a device that is not there.
std::string device_name(int index);

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

/// A point in the calling thread's current stream. Copies are the same point.
class Event {
 public:
  explicit Event(int index);
  /// What the calling thread launches from now on comes after the point. The host does not wait.
  void wait() const;

 private:
  int index_;
  std::shared_ptr<void> event_;
};

/// Device memory in the order of `stream`; nullptr where there is not enough. Freed in the order
/// of the same stream: what other streams do with it must come before, by events.
void* allocate(int index, int64_t bytes, void* stream);
void free(int index, void* data, void* stream);
/// Hands unused memory of the device's pool back to the system.
void release_cached_memory(int index);

/// Lets devices copy from and to ordinary host memory without a detour, until unpin.
void pin(void* data, int64_t bytes);
void unpin(void* data);

/// Zeroes device memory in the order of the current stream.
void zero(int index, void* data, int64_t bytes);

/// Copies between any two places in the order of the current stream of `index`, and waits for it.
void copy_and_wait(int index, void* to, const void* from, int64_t bytes);

/// The calling thread waits for the current stream of `index`. Throws what a kernel found wrong in
/// its input (core/cuda/fault.h).
void synchronize(int index);

/// For tests: device memory that the host may touch, and launches that return when they are done.
/// Before the first allocation.
void share_memory_with_host();
bool memory_is_shared_with_host();

}  // namespace tessera::cuda
