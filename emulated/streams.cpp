// The calls for streams and events. If streams are deferred (emulated/deferred.h), their work is
// queued by emulated/deferred.cpp.
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>

#include "emulated/capture.h"
#include "emulated/deferred.h"
#include "emulated/errors.h"

struct CUstream_st {
  int device;
  std::shared_ptr<emulated::Queue> queue;
};

struct CUevent_st {
  int device;
  bool timed;
  emulated::SharedPoint recorded;  // null until the event is recorded outside of a capture
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

std::shared_ptr<Queue> null_queue_of(int device) {
  static std::mutex mutex;
  static auto& queues = *new std::map<int, std::shared_ptr<Queue>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Queue>& queue = queues[device];
  if (!queue) queue = new_queue(device, true, false);
  return queue;
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

std::shared_ptr<Queue> queue_of(cudaStream_t stream) {
  return stream == nullptr ? null_queue_of(current_device()) : stream->queue;
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
  const bool waits_for_null_stream = flags != cudaStreamNonBlocking;
  auto queue = new_queue(current_device(), false, waits_for_null_stream);
  *stream = streams().add(new CUstream_st{current_device(), std::move(queue)});
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
  const auto error = check_not_captured(stream, __func__);
  return error != cudaSuccess ? error : wait_for_stream(stream);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  const auto error = check_not_captured(stream, __func__);
  if (error != cudaSuccess) return error;
  if (const auto capture = check_no_capture(__func__); capture != cudaSuccess) return capture;
  return is_idle(stream) ? wait_for_stream(stream) : failed(cudaErrorNotReady, __func__);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  const auto error = wait_for_point(stream, event->point);
  if (error != cudaSuccess || captured(stream) || !event->recorded) return error;
  return defer_behind(stream, event->recorded);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  const auto call = [function, argument] {
    function(argument);
    return cudaSuccess;
  };
  return enqueue(stream, call, Kind::host);
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
  event->point = point_of(stream);
  if (!captured(stream)) event->recorded = point_behind(stream);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  const auto error = check_not_captured(event->point, __func__);
  return error != cudaSuccess || !event->recorded ? error : wait_for(event->recorded);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
  const auto error = check_not_captured(event->point, __func__);
  if (error != cudaSuccess) return error;
  if (const auto capture = check_no_capture(__func__); capture != cudaSuccess) return capture;
  if (!event->recorded) return cudaSuccess;
  return passed(event->recorded) ? wait_for(event->recorded) : failed(cudaErrorNotReady, __func__);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  std::chrono::steady_clock::time_point times[2];
  for (int i = 0; i < 2; ++i) {
    const cudaEvent_t event = i == 0 ? start : end;
    if (const auto error = check_event(event, __func__); error != cudaSuccess) return error;
    if (!event->timed || !event->recorded) {
      return failed(cudaErrorInvalidResourceHandle,
                    "cudaEventElapsedTime: an event has no timing, or was never recorded");
    }
    if (!passed(event->recorded, &times[i])) return failed(cudaErrorNotReady, __func__);
    if (const auto error = wait_for(event->recorded); error != cudaSuccess) return error;
  }
  const std::chrono::duration<float, std::milli> elapsed = times[1] - times[0];
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
