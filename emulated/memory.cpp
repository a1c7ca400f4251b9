// Device, managed and pinned memory. Each block is an allocation of its own, so that the address
// sanitizer knows its ends. A block is filled with NaN, and recorded for the checks of copies and
// frees.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "emulated/capture.h"
#include "emulated/control.h"
#include "emulated/errors.h"

namespace emulated {

namespace {

enum class Space { device, managed, pool, graph, pinned };

struct Block {
  size_t bytes;
  Space space;
  int device;
};

const char* allocator_of(Space space) {
  switch (space) {
    case Space::device: return "cudaMalloc";
    case Space::managed: return "cudaMallocManaged";
    case Space::pool: return "cudaMallocAsync";
    case Space::graph: return "cudaMallocAsync in a capture";
    case Space::pinned: return "cudaHostAlloc";
  }
  std::abort();
}

struct Use {
  size_t device = 0;  // bytes of all spaces but pinned
  size_t pool = 0;
  size_t pool_peak = 0;
};

class Memory {
 public:
  cudaError_t allocate(void** pointer, size_t bytes, Space space) {
    const char* const call = allocator_of(space);
    if (current_device() >= device_count()) return failed(cudaErrorNoDevice, call);
    if (bytes == 0) {
      *pointer = nullptr;
      const bool refused = space != Space::device && space != Space::pinned;
      return refused ? failed(cudaErrorInvalidValue, fmt::format("{} of 0 bytes", call))
                     : cudaSuccess;
    }
    const std::lock_guard lock(mutex_);
    Use& use = uses_[current_device()];
    void* memory = nullptr;
    const bool fits = space == Space::pinned ||
                      (bytes <= total_ && use.device <= total_ - bytes);
    if (!fits || posix_memalign(&memory, alignment, bytes) != 0) {
      return failed(cudaErrorMemoryAllocation,
                    fmt::format("{} of {} bytes with {} of {} in use", call, bytes, use.device,
                                total_));
    }
    std::memset(memory, 0xFF, bytes);
    blocks_[static_cast<const char*>(memory)] = {bytes, space, current_device()};
    if (space != Space::pinned) use.device += bytes;
    if (space == Space::pool) {
      use.pool += bytes;
      use.pool_peak = std::max(use.pool_peak, use.pool);
    }
    *pointer = memory;
    return cudaSuccess;
  }

  cudaError_t release(const char* call, void* pointer, Space space, Space or_space) {
    if (pointer == nullptr) return cudaSuccess;
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<const char*>(pointer));
    if (found == blocks_.end()) {
      return failed(cudaErrorInvalidValue,
                    fmt::format("{}: nothing is allocated at {}", call, pointer));
    }
    const Block block = found->second;
    if (block.space != space && block.space != or_space) {
      return failed(cudaErrorInvalidValue,
                    fmt::format("{} of memory from {}", call, allocator_of(block.space)));
    }
    blocks_.erase(found);
    Use& use = uses_[block.device];
    if (block.space != Space::pinned) use.device -= block.bytes;
    if (block.space == Space::pool) use.pool -= block.bytes;
    std::free(pointer);
    return cudaSuccess;
  }

  /// Returns the block that contains an address, and its start; nullopt for memory that CUDA did
  /// not allocate.
  std::optional<std::pair<const char*, Block>> around(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* const byte = static_cast<const char*>(address);
    auto found = blocks_.upper_bound(byte);
    if (found == blocks_.begin()) return {};
    --found;
    if (byte >= found->first + found->second.bytes) return {};
    return *found;
  }

  Use use(int device) {
    const std::lock_guard lock(mutex_);
    return uses_[device];
  }
  size_t bytes_in_use() {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [device, use] : uses_) sum += use.device;
    return sum;
  }
  void forget_pool_peak(int device) {
    const std::lock_guard lock(mutex_);
    uses_[device].pool_peak = uses_[device].pool;
  }
  size_t total() {
    const std::lock_guard lock(mutex_);
    return total_;
  }
  void set_total(size_t bytes) {
    const std::lock_guard lock(mutex_);
    total_ = bytes;
  }

 private:
  static constexpr size_t alignment = 256;  // the least that CUDA guarantees

  std::mutex mutex_;
  std::map<const char*, Block> blocks_;
  std::map<int, Use> uses_;
  size_t total_ = size_t{16} << 30;
};

// This object is never destroyed, because objects of static lifetime free their memory after main.
Memory& memory() {
  static auto& one = *new Memory;
  return one;
}

// Checks one end of a copy. It must lie in one block of device memory if `on_device`; otherwise it
// may also lie in host memory.
cudaError_t check_end(const char* call, const void* address, size_t bytes, bool on_device) {
  const auto found = memory().around(address);
  if (!found) {
    return on_device ? failed(cudaErrorInvalidValue,
                              fmt::format("{}: {} is no device memory", call, address))
                     : cudaSuccess;
  }
  const auto& [start, block] = *found;
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - start);
  if (on_device && block.space == Space::pinned) {
    return failed(cudaErrorInvalidMemcpyDirection,
                  fmt::format("{}: {} is pinned host memory", call, address));
  }
  if (bytes > block.bytes - offset) {
    return failed(cudaErrorInvalidValue,
                  fmt::format("{}: {} bytes from byte {} on, of {} from {}", call, bytes, offset,
                              block.bytes, allocator_of(block.space)));
  }
  return cudaSuccess;
}

cudaError_t copy(const char* call, void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (const auto error = check_end(call, to, bytes, to_device); error != cudaSuccess) return error;
  if (const auto error = check_end(call, from, bytes, from_device); error != cudaSuccess) {
    return error;
  }
  const auto a = reinterpret_cast<uintptr_t>(to);
  const auto b = reinterpret_cast<uintptr_t>(from);
  if (a < b + bytes && b < a + bytes) {
    return failed(cudaErrorInvalidValue, fmt::format("{}: the two ends overlap", call));
  }
  // A graph cannot copy pageable memory, because such a copy needs the host's help.
  if (!memory().around(to) || !memory().around(from)) {
    const auto error = check_not_captured(stream, "a copy of pageable memory");
    if (error != cudaSuccess) return error;
  }
  return enqueue(stream, [=] {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t set(const char* call, void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!memory().around(to)) {
    return failed(cudaErrorInvalidValue,
                  fmt::format("{}: {} is no memory of CUDA's", call, to));
  }
  if (const auto error = check_end(call, to, bytes, false); error != cudaSuccess) return error;
  return enqueue(stream, [=] {
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}

// A device's pool is just a handle: the device's number plus 1.
cudaError_t find_pool(const char* call, cudaMemPool_t pool, int* device) {
  *device = static_cast<int>(reinterpret_cast<uintptr_t>(pool)) - 1;
  if (0 <= *device && *device < device_count()) return cudaSuccess;
  return failed(cudaErrorInvalidValue, fmt::format("{}: there is no such pool", call));
}

}  // namespace

void set_device_memory(size_t bytes) { memory().set_total(bytes); }
size_t device_bytes_in_use() { return memory().bytes_in_use(); }

cudaError_t allocate_graph_memory(void** pointer, size_t bytes) {
  return memory().allocate(pointer, bytes, Space::graph);
}
void free_graph_memory(void* pointer) {
  (void)memory().release("cudaGraphDestroy", pointer, Space::graph, Space::graph);
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return memory().allocate(pointer, bytes, Space::device);
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  if (flags != cudaMemAttachGlobal) return failed(cudaErrorNotSupported, __func__);
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return memory().allocate(pointer, bytes, Space::managed);
}
cudaError_t cudaFree(void* pointer) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return memory().release(__func__, pointer, Space::device, Space::managed);
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (captured(stream)) return capture_allocation(pointer, bytes, stream);
  return memory().allocate(pointer, bytes, Space::pool);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (captured(stream)) return capture_free(pointer, stream);
  return memory().release(__func__, pointer, Space::pool, Space::pool);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (flags > (cudaHostAllocPortable | cudaHostAllocMapped)) {
    return failed(cudaErrorNotSupported, "cudaHostAlloc: these flags are not emulated");
  }
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return memory().allocate(pointer, bytes, Space::pinned);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* pointer) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return memory().release(__func__, pointer, Space::pinned, Space::pinned);
}

namespace {
std::mutex registered_mutex;
std::set<void*> registered;
}  // namespace

// Registering memory has no effect here. The next two functions only refuse to register a pointer
// twice, and to unregister a pointer that is not registered.
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  if (pointer == nullptr || bytes == 0) {
    return failed(cudaErrorInvalidValue, "cudaHostRegister: no memory");
  }
  const std::lock_guard lock(registered_mutex);
  if (!registered.insert(pointer).second) {
    return failed(cudaErrorHostMemoryAlreadyRegistered,
                  "cudaHostRegister: this memory is registered already");
  }
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  const std::lock_guard lock(registered_mutex);
  if (registered.erase(pointer) == 0) {
    return failed(cudaErrorHostMemoryNotRegistered,
                  "cudaHostUnregister: this memory is not registered");
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return copy(__func__, to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  return copy(__func__, to, from, bytes, kind, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return set(__func__, to, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  return set(__func__, to, value, bytes, stream);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = memory().total();
  *free_bytes = *total_bytes - std::min(*total_bytes, memory().use(current_device()).device);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const auto found = memory().around(pointer);
  auto* const address = const_cast<void*>(pointer);
  *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, nullptr};
  if (!found) return cudaSuccess;
  const auto& [start, block] = *found;
  attributes->device = block.device;
  attributes->devicePointer = address;
  switch (block.space) {
    case Space::device:
    case Space::graph:
    case Space::pool: attributes->type = cudaMemoryTypeDevice; return cudaSuccess;
    case Space::managed: attributes->type = cudaMemoryTypeManaged; break;
    case Space::pinned: attributes->type = cudaMemoryTypeHost; break;
  }
  attributes->hostPointer = address;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(device) + 1);
  int known = 0;
  return find_pool(__func__, *pool, &known);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  int device = 0;
  if (const auto error = find_pool(__func__, pool, &device); error != cudaSuccess) return error;
  const bool peak =
      attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh;
  if (!peak) return cudaSuccess;  // setting any other attribute has no effect
  if (*static_cast<const uint64_t*>(value) != 0) {
    return failed(cudaErrorInvalidValue, fmt::format("{}: a peak can be set to 0 alone", __func__));
  }
  memory().forget_pool_peak(device);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  int device = 0;
  if (const auto error = find_pool(__func__, pool, &device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
      *static_cast<uint64_t*>(value) = memory().use(device).pool;
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
      *static_cast<uint64_t*>(value) = memory().use(device).pool_peak;
      return cudaSuccess;
    default: return failed(cudaErrorNotSupported, "cudaMemPoolGetAttribute: not emulated");
  }
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  int device = 0;
  return find_pool(__func__, pool, &device);
}
