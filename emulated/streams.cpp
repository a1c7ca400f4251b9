// Streams and events. Except in captures, work is done when its call returns. So only the lifetimes
// and flags of streams and events matter, and the times at which events were recorded.
#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <set>

#include "emulated/capture.h"
#include "emulated/errors.h"

struct CUstream_st {
  int device;
};

struct CUevent_st {
  int device;
  bool timed;
  std::optional<std::chrono::steady_clock::time_point> recorded;
  emulated::CapturedPoint point;
};

namespace emulated {

namespace {

template <class T>
class Handles {
 public:
  T* add(T* handle) {
    const std::lock_guard lock(mutex_);
    handles_.insert(handle);
    return handle;
  }
  bool has(T* handle) {
    const std::lock_guard lock(mutex_);
    return handles_.contains(handle);
  }
  bool remove(T* handle) {
    const std::lock_guard lock(mutex_);
    return handles_.erase(handle) > 0;
  }

 private:
  std::mutex mutex_;
  std::set<T*> handles_;
};

// These two sets are never destroyed, because objects of static lifetime may still use them after
// main.
Handles<CUstream_st>& streams() {
  static auto& handles = *new Handles<CUstream_st>;
  return handles;
}
Handles<CUevent_st>& events() {
  static auto& handles = *new Handles<CUevent_st>;
  return handles;
}

cudaError_t check_event(cudaEvent_t event, const char* call) {
  if (events().has(event)) return cudaSuccess;
  return failed(cudaErrorInvalidResourceHandle, fmt::format("{}: there is no such event", call));
}

}  // namespace

cudaError_t check_stream(cudaStream_t stream, const char* call) {
  if (stream == nullptr || streams().has(stream)) return cudaSuccess;
  return failed(cudaErrorInvalidResourceHandle, fmt::format("{}: there is no such stream", call));
}

cudaError_t check_stream_of(int device, cudaStream_t stream, const char* call) {
  if (const auto error = check_stream(stream, call); error != cudaSuccess) return error;
  if (stream == nullptr || stream->device == device) return cudaSuccess;
  return failed(cudaErrorInvalidResourceHandle,
                fmt::format("{} on device {} with a stream of device {}", call, device,
                            stream->device));
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (device_count() == 0) return failed(cudaErrorNoDevice, __func__);
  if (flags > cudaStreamNonBlocking) {
    return failed(cudaErrorInvalidValue, "cudaStreamCreate: unknown flags");
  }
  *stream = streams().add(new CUstream_st{current_device()});
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr || !streams().remove(stream)) {
    return failed(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: there is no such stream");
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  return check_not_captured(stream, __func__);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  return check_not_captured(stream, __func__);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  return wait_for_point(stream, event->point);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  return enqueue(stream, [function, argument] {
    function(argument);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (device_count() == 0) return failed(cudaErrorNoDevice, __func__);
  if (flags > (cudaEventBlockingSync | cudaEventDisableTiming)) {
    return failed(cudaErrorInvalidValue, "cudaEventCreate: unknown flags");
  }
  *event = events().add(
      new CUevent_st{current_device(), (flags & cudaEventDisableTiming) == 0, {}, {}});
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  const auto error = check_stream_of(event->device, stream, __func__);
  if (error != cudaSuccess) return error;
  event->recorded = std::chrono::steady_clock::now();
  event->point = point_of(stream);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  return check_not_captured(event->point, __func__);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  return check_not_captured(event->point, __func__);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  for (const cudaEvent_t event : {start, end}) {
    if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
    if (!event->timed || !event->recorded) {
      return failed(cudaErrorInvalidResourceHandle,
                    "cudaEventElapsedTime: an event without timing, or never recorded");
    }
  }
  const std::chrono::duration<float, std::milli> elapsed = *end->recorded - *start->recorded;
  *milliseconds = elapsed.count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!events().remove(event)) {
    return failed(cudaErrorInvalidResourceHandle, "cudaEventDestroy: there is no such event");
  }
  delete event;
  return cudaSuccess;
}
