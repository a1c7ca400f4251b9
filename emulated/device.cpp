// Errors, and devices with their properties. The properties are those of a GPU of compute
// capability 9.0, but with few multiprocessors, so that grid-stride loops iterate several times.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <utility>

#include "emulated/block_runner.h"
#include "emulated/capture.h"
#include "emulated/control.h"
#include "emulated/deferred.h"
#include "emulated/environment.h"
#include "emulated/errors.h"

namespace emulated {

namespace {

struct Known {
  cudaError_t error;
  const char* name;
  const char* sentence;
};
constexpr Known known[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const Known& find(cudaError_t error) {
  for (const Known& entry : known) {
    if (entry.error == error) return entry;
  }
  return known[std::size(known) - 1];
}

// This type has no destructor, because the object is still needed after main: the destructors of
// static objects free device memory, and a free that fails records its error here.
struct LastError {
  cudaError_t error;      // cleared by cudaGetLastError
  cudaError_t explained;  // the error that `text` explains; never cleared
  char text[2048];        // the error's sentence and the reason
  size_t reason;          // the offset at which the reason begins
};
constinit thread_local LastError last{};
constinit thread_local int device_of_thread = 0;

std::atomic<int> set_count{-1};

int count_of_environment() { return number_of("TESSERA_EMULATED_DEVICES", 1, 0, 64); }

// The first byte of the UUID is the device's number among all devices of the machine.
cudaUUID_t uuid_of(int device) {
  const int first = number_of("TESSERA_EMULATED_FIRST_DEVICE", 0, 0, 63);
  return {.bytes = {static_cast<char>(first + device)}};
}

cudaError_t check_device(int device, const char* call) {
  if (0 <= device && device < device_count()) return cudaSuccess;
  return failed(
      device_count() == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice,
      fmt::format("{}: device {}, but the number of devices is {}", call, device, device_count()));
}

}  // namespace

cudaError_t failed(cudaError_t error, const std::string& why) {
  last.error = last.explained = error;
  const std::string sentence = find(error).sentence;
  last.reason = sentence.size() + 2;
  std::snprintf(last.text, sizeof last.text, "%s: %s", sentence.c_str(), why.c_str());
  return error;
}

std::string last_failure() { return last.text + last.reason; }
int current_device() { return device_of_thread; }
void set_device_count(int count) { set_count = count; }

int device_count() {
  static const int from_environment = count_of_environment();
  const int count = set_count;
  return count < 0 ? from_environment : count;
}

}  // namespace emulated

using namespace emulated;

const char* cudaGetErrorName(cudaError_t error) { return find(error).name; }

const char* cudaGetErrorString(cudaError_t error) {
  const bool explained = error != cudaSuccess && error == last.explained;
  return explained ? last.text : find(error).sentence;
}

cudaError_t cudaGetLastError() { return std::exchange(last.error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last.error; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice, "TESSERA_EMULATED_DEVICES is 0");
}

cudaError_t cudaSetDevice(int device) {
  if (const auto error = check_device(device, "cudaSetDevice"); error != cudaSuccess) return error;
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return check_device(device_of_thread, "cudaGetDevice");
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const auto error = check_device(device, "cudaGetDeviceProperties");
  if (error != cudaSuccess) return error;
  size_t free_bytes = 0;
  *properties = {
      .name = "emulated GPU",
      .uuid = uuid_of(device),
      .totalGlobalMem = 0,
      .sharedMemPerBlock = 48 << 10,
      .sharedMemPerBlockOptin = max_shared_bytes,
      .warpSize = 32,
      .maxThreadsPerBlock = max_block_threads,
      .major = 9,
      .minor = 0,
      .multiProcessorCount = number_of("TESSERA_EMULATED_MULTIPROCESSORS", 3, 1, 1024),
      .l2CacheSize = 50 << 20,
  };
  return cudaMemGetInfo(&free_bytes, &properties->totalGlobalMem);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp all{};
  const auto error = cudaGetDeviceProperties(&all, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = all.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(all.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = all.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = all.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = all.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = all.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = all.minor; break;
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(all.sharedMemPerBlockOptin); break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default:
      return failed(cudaErrorInvalidValue,
                    "cudaDeviceGetAttribute: this attribute is not emulated");
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  // The wait would include the captured streams, which have no work to wait for.
  const auto capture = check_no_capture_in_any_mode(__func__);
  if (capture != cudaSuccess) return capture;
  const auto error = check_device(device_of_thread, __func__);
  return error != cudaSuccess ? error : wait_for_device(device_of_thread);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = device_count() > 0 ? CUDART_VERSION : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
