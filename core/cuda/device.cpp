// Devices, their streams and their memory.
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/cuda/check.h"
#include "core/cuda/fault.h"
#include "core/cuda/graph.h"
#include "core/error.h"

namespace tessera::cuda {

namespace {

struct DeviceState {
  cudaStream_t compute = nullptr;
  cudaStream_t copies = nullptr;
  Fault* fault = nullptr;
};

struct Found {
  int count = 0;
  std::string why;  // the reason if count is 0
};

// CUDA is asked for its devices only once, because they do not change while a process runs.
const Found& found() {
  static const Found result = [] {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();  // clears the error: the next call must not report it
    int driver = 0;
    if (error == cudaErrorInsufficientDriver &&
        cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
      return Found{0, "no NVIDIA driver is loaded"};
    }
    if (error != cudaSuccess) return Found{0, cudaGetErrorString(error)};
    if (count == 0) return Found{0, "there is no device"};
    return Found{count, ""};
  }();
  return result;
}

void check_device(int index) {
  TESSERA_CHECK(0 <= index && index < device_count(), "cuda: there is no device {}: {}", index,
                unusable().empty() ? fmt::format("{} are usable", device_count()) : unusable());
}

/// Makes a device the calling thread's current device in CUDA's runtime while the object lives. The
/// runtime creates streams and events on the current device.
class DeviceScope {
 public:
  explicit DeviceScope(int index) {
    TESSERA_CUDA(cudaGetDevice(&before_));
    TESSERA_CUDA(cudaSetDevice(index));
  }
  ~DeviceScope() { (void)cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

DeviceState make_state(int index) {
  const DeviceScope scope(index);
  DeviceState state;
  TESSERA_CUDA(cudaStreamCreateWithFlags(&state.compute, cudaStreamNonBlocking));
  TESSERA_CUDA(cudaStreamCreateWithFlags(&state.copies, cudaStreamNonBlocking));
  TESSERA_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&state.fault), sizeof(Fault),
                             cudaHostAllocDefault));
  *state.fault = Fault{};
  // The pool keeps freed memory. Returning memory to the system and allocating it again would wait
  // for the device.
  cudaMemPool_t pool = nullptr;
  TESSERA_CUDA(cudaDeviceGetDefaultMemPool(&pool, index));
  uint64_t everything = ~uint64_t{0};
  TESSERA_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything));
  return state;
}

// The states are never destroyed, because tensors of static lifetime free their memory after main.
DeviceState& state_of(int index) {
  static std::mutex mutex;
  static auto* const states = new std::vector<DeviceState>;
  check_device(index);
  const std::lock_guard lock(mutex);
  if (states->empty()) states->resize(static_cast<size_t>(device_count()));
  DeviceState& state = (*states)[static_cast<size_t>(index)];
  if (state.compute == nullptr) state = make_state(index);
  return state;
}

thread_local int scoped_device = -1;
thread_local void* scoped_stream = nullptr;
bool shared_with_host = false;

/// True if a fault of this kind reports a token or a target class outside the vocabulary.
bool of_vocabulary(FaultKind kind) {
  return kind == FaultKind::embedding_token || kind == FaultKind::embedding_bag_token ||
         kind == FaultKind::cross_entropy_target ||
         kind == FaultKind::linear_cross_entropy_target ||
         kind == FaultKind::smoothed_cross_entropy_target;
}

const char* operation_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::embedding_token: return "embedding: token";
    case FaultKind::embedding_bag_token: return "embedding_bag: token";
    case FaultKind::cross_entropy_target: return "cross_entropy: target";
    case FaultKind::linear_cross_entropy_target: return "linear_cross_entropy: target";
    case FaultKind::smoothed_cross_entropy_target: return "smoothed_cross_entropy: target";
    case FaultKind::embedding_bag_offset: return "embedding_bag: offset";
    case FaultKind::index_select_index: return "index_select: index";
    case FaultKind::gather_index: return "gather: index";
    case FaultKind::scatter_add_index: return "scatter_add: index";
    case FaultKind::row_products_index:
      return "row_products: index";
    case FaultKind::cross_entropy_weights: return "cross_entropy: the weights of targets";
  }
  return "cuda: value";
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  fail("{}: {} ({})", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

void finish_launch(const Context& context, const char* name, cudaError_t error) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    fail("{}: the kernel was not started: {} ({})", name, cudaGetErrorName(error),
         cudaGetErrorString(error));
  }
  finish_call(context, name);
}

void finish_call(const Context& context, const char* name) {
  if (running_capture() != nullptr) return check_captured(context.stream, name);
  if (shared_with_host) synchronize(context.device.index);
}

std::string unusable() { return found().why; }
int device_count() { return found().count; }

int64_t multiprocessor_count(int index) {
  check_device(index);
  int count = 0;
  TESSERA_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index));
  return count;
}

std::string device_name(int index) {
  check_device(index);
  cudaDeviceProp properties{};
  TESSERA_CUDA(cudaGetDeviceProperties(&properties, index));
  return fmt::format("{}, compute capability {}.{}", properties.name, properties.major,
                     properties.minor);
}

std::array<int64_t, 2> device_uuid(int index) {
  check_device(index);
  cudaDeviceProp properties{};
  TESSERA_CUDA(cudaGetDeviceProperties(&properties, index));
  std::array<int64_t, 2> uuid{};
  static_assert(sizeof(uuid) == sizeof(properties.uuid));
  std::memcpy(uuid.data(), &properties.uuid, sizeof(uuid));
  return uuid;
}

void use_device(int index) {
  check_device(index);
  TESSERA_CUDA(cudaSetDevice(index));
}

void* current_stream(int index) {
  return scoped_device == index ? scoped_stream : state_of(index).compute;
}

StreamScope::StreamScope(int device, void* stream)
    : device_before_(std::exchange(scoped_device, device)),
      stream_before_(std::exchange(scoped_stream, stream)) {}

StreamScope::~StreamScope() {
  scoped_device = device_before_;
  scoped_stream = stream_before_;
}

void* new_stream(int index) {
  (void)state_of(index);
  const DeviceScope scope(index);
  cudaStream_t stream = nullptr;
  TESSERA_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void* copy_stream(int index) { return state_of(index).copies; }

Event::Event(int index) : index_(index) {
  const DeviceScope scope(index);
  cudaEvent_t event = nullptr;
  TESSERA_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  event_ = {event, [](void* last) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(last)); }};
  const auto stream = static_cast<cudaStream_t>(current_stream(index));
  TESSERA_CUDA(cudaEventRecord(event, stream));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TESSERA_CUDA(cudaStreamIsCapturing(stream, &status));
  is_captured_ = status != cudaStreamCaptureStatusNone;
}

void Event::wait() const {
  TESSERA_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(current_stream(index_)),
                                   static_cast<cudaEvent_t>(event_.get()), 0));
}

void Event::synchronize() const {
  refuse_in_capture("Event::synchronize");
  TESSERA_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(event_.get())));
  throw_fault({DeviceType::cuda, index_});
}

bool Event::passed() const {
  refuse_in_capture("Event::passed");
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event_.get()));
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

bool Event::over() const {
  // A query of a captured event is an error in every mode, and would break the capture.
  if (is_captured_) return false;
  // A query by a thread that captures a graph would break the capture, except in relaxed mode.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event_.get()));
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return state != cudaErrorNotReady;
}

void* allocate(int index, int64_t bytes, void* stream) {
  (void)state_of(index);
  const bool capturing = running_capture() != nullptr;
  if (capturing) check_captured(stream, "allocate");
  void* data = nullptr;
  const auto size = static_cast<size_t>(bytes);
  // The host never reads memory that a graph has allocated, so this memory need not be shared.
  const cudaError_t error =
      shared_with_host && !capturing ? cudaMallocManaged(&data, size, cudaMemAttachGlobal)
                       : cudaMallocAsync(&data, size, static_cast<cudaStream_t>(stream));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaMallocAsync");
  return data;
}

void free(int, void* data, void* stream, const MemoryLedger* captured) {
  Capture* const running = running_capture();
  const MemoryLedger* const now = running != nullptr ? running->memory.get() : nullptr;
  if (captured != now) {
    // If the memory was allocated outside of any capture, it is freed when the running capture
    // ends. Otherwise the memory was allocated in a capture that has ended without freeing it.
    // Graph's constructor throws for such a capture. So the graph never runs, and there is nothing
    // to free.
    if (captured == nullptr) running->freed.emplace_back(data, stream);
    return;
  }
  // Errors are ignored, because destructors call this function and must not throw. The call may
  // fail after main, but the end of the process frees all memory anyway.
  if (shared_with_host && captured == nullptr) {
    (void)cudaFree(data);
  } else {
    (void)cudaFreeAsync(data, static_cast<cudaStream_t>(stream));
  }
}

void release_cached_memory(int index) {
  synchronize(index);
  cudaMemPool_t pool = nullptr;
  TESSERA_CUDA(cudaDeviceGetDefaultMemPool(&pool, index));
  TESSERA_CUDA(cudaMemPoolTrimTo(pool, 0));
  TESSERA_CUDA(cudaDeviceGraphMemTrim(index));
}

void* allocate_pinned(int64_t bytes) {
  refuse_in_capture("allocate_pinned");
  void* data = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaHostAlloc");
  return data;
}

void free_pinned(void* data) {
  // Waits, because copies may be in flight. Destructors call this function, so errors cannot be
  // reported.
  (void)cudaDeviceSynchronize();
  (void)cudaFreeHost(data);
}

void zero(int index, void* data, int64_t bytes) {
  TESSERA_CUDA(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes),
                               static_cast<cudaStream_t>(current_stream(index))));
  finish_call(current_context({DeviceType::cuda, index}), "zero");
}

void copy(int index, void* to, const void* from, int64_t bytes) {
  TESSERA_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                               static_cast<cudaStream_t>(current_stream(index))));
  finish_call(current_context({DeviceType::cuda, index}), "copy");
}

void copy_and_wait(int index, void* to, const void* from, int64_t bytes) {
  refuse_in_capture("copy_and_wait");
  copy(index, to, from, bytes);
  synchronize(index);
}

void synchronize(int index) {
  refuse_in_capture("synchronize");
  TESSERA_CUDA(cudaStreamSynchronize(static_cast<cudaStream_t>(current_stream(index))));
  throw_fault({DeviceType::cuda, index});
}

Fault* device_fault(const Context& context) { return state_of(context.device.index).fault; }

void throw_fault(Device device) {
  Fault& reported = *state_of(device.index).fault;
  static std::mutex mutex;  // so that each fault is taken by only one thread
  const std::lock_guard lock(mutex);
  if (std::atomic_ref(reported.complete).load(std::memory_order_acquire) == 0) return;
  const Fault fault = reported;
  reported.complete = 0;
  // Kernels may report the next fault from here on.
  std::atomic_ref(reported.claimed).store(0, std::memory_order_release);
  if (fault.kind == FaultKind::cross_entropy_weights) {
    fail(
        "cross_entropy: the weights of {} targets add up to zero, for example because all are "
        "ignored or belong to classes of weight 0",
        fault.limit);
  }
  if (fault.kind == FaultKind::embedding_bag_offset) {
    fail("{} {} at position {} is outside [{}, {}]", operation_of(fault.kind), fault.value,
         fault.position, fault.low, fault.limit - 1);
  }
  if (!of_vocabulary(fault.kind)) {
    fail("{} {} at position {} is outside [0, {})", operation_of(fault.kind), fault.value,
         fault.position, fault.limit);
  }
  fail("{} {} at position {} is outside the vocabulary of {}", operation_of(fault.kind),
       fault.value, fault.position, fault.limit);
}

void share_memory_with_host() { shared_with_host = true; }
bool memory_is_shared_with_host() { return shared_with_host; }

}  // namespace tessera::cuda
