// Device, managed and pinned memory. The host cannot access device memory (emulated/arena.h). A new
// block is filled with NaN and recorded. Copies and frees are checked against the record.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "emulated/arena.h"
#include "emulated/capture.h"
#include "emulated/control.h"
#include "emulated/errors.h"
#include "emulated/memory.h"

namespace emulated {

namespace {

bool host_may_access(Space space) { return space == Space::managed || space == Space::pinned; }

void* take(size_t bytes, Space space) {
  if (!host_may_access(space)) return take_device_memory(bytes);
  // Each block is a separate allocation, so that the address sanitizer knows the block's bounds.
  constexpr size_t alignment = 256;  // CUDA guarantees at least this alignment
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void give(void* memory, const Block& block) {
  if (host_may_access(block.space)) {
    std::free(memory);
  } else {
    give_device_memory(memory, block.bytes);
  }
}

/// Fills memory with NaN, in the order of the stream's work. If a kernel on another stream uses the
/// memory without waiting for `stream`, the fill may overwrite the kernel's result, so the missing
/// synchronisation shows.
cudaError_t fill(void* memory, size_t bytes, cudaStream_t stream) {
  const auto work = [=] {
    std::memset(memory, 0xFF, bytes);
    return cudaSuccess;
  };
  return streams_are_deferred() ? defer(stream, Kind::device, work)
                                : run_now(Kind::device, work);
}

struct Use {
  size_t device = 0;  // bytes in all spaces except pinned
  size_t pool = 0;
  size_t pool_peak = 0;
};

class Memory {
 public:
  /// Allocates memory with undefined contents.
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
    const bool fits = space == Space::pinned ||
                      (bytes <= total_ && use.device <= total_ - bytes);
    void* const memory = fits ? take(bytes, space) : nullptr;
    if (memory == nullptr) {
      return failed(cudaErrorMemoryAllocation,
                    fmt::format("{} of {} bytes with {} of {} in use", call, bytes, use.device,
                                total_));
    }
    blocks_[static_cast<const char*>(memory)] = {bytes, space, current_device()};
    if (space != Space::pinned) use.device += bytes;
    if (space == Space::pool) {
      use.pool += bytes;
      use.pool_peak = std::max(use.pool_peak, use.pool);
    }
    *pointer = memory;
    return cudaSuccess;
  }

  /// Removes a block from the record, and describes the block in `released`. Returns an error
  /// unless the block is in `space` or `or_space`. After a success, the caller must free the
  /// memory. For a null pointer there is nothing to free, and `released` has 0 bytes.
  cudaError_t release(const char* call, void* pointer, Space space, Space or_space,
                      Block& released) {
    released = {0, space, 0};
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
    released = block;
    return cudaSuccess;
  }

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

cudaError_t allocate(void** pointer, size_t bytes, Space space) {
  const auto error = memory().allocate(pointer, bytes, space);
  if (error != cudaSuccess || bytes == 0) return error;
  return run_now(Kind::device, [&] {
    std::memset(*pointer, 0xFF, bytes);
    return cudaSuccess;
  });
}

/// Frees memory after deferred work has failed. Work that was running at the failure may still use
/// the memory: for example, MPI may write to it during a call of NCCL. The memory is then left to
/// this work, and never freed.
void give_after_failure(void* pointer, const Block& block) {
  if (!is_running(block.device)) give(pointer, block);
}

/// Waits until the device has finished all its work or has failed, then frees memory, as cudaFree
/// and cudaFreeHost do.
cudaError_t release(const char* call, void* pointer, Space space, Space or_space) {
  Block block{};
  const auto error = memory().release(call, pointer, space, or_space, block);
  if (error != cudaSuccess || block.bytes == 0) return error;
  const cudaError_t failure = wait_for_device(block.device);
  if (failure == cudaSuccess) {
    give(pointer, block);
  } else {
    give_after_failure(pointer, block);
  }
  return failure;
}

// Each device has one pool. The pool's handle is the device's number plus 1.
cudaError_t find_pool(const char* call, cudaMemPool_t pool, int* device) {
  *device = static_cast<int>(reinterpret_cast<uintptr_t>(pool)) - 1;
  if (0 <= *device && *device < device_count()) return cudaSuccess;
  return failed(cudaErrorInvalidValue, fmt::format("{}: there is no such pool", call));
}

}  // namespace

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

std::optional<std::pair<const char*, Block>> block_around(const void* address) {
  return memory().around(address);
}

void set_device_memory(size_t bytes) { memory().set_total(bytes); }
size_t device_bytes_in_use() { return memory().bytes_in_use(); }

cudaError_t allocate_graph_memory(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, Space::graph);
}
void free_graph_memory(void* pointer) {
  Block block{};
  (void)memory().release("cudaGraphDestroy", pointer, Space::graph, Space::graph, block);
  if (block.bytes > 0) give(pointer, block);
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return allocate(pointer, bytes, Space::device);
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  if (flags != cudaMemAttachGlobal) return failed(cudaErrorNotSupported, __func__);
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return allocate(pointer, bytes, Space::managed);
}
cudaError_t cudaFree(void* pointer) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return release(__func__, pointer, Space::device, Space::managed);
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (captured(stream)) return capture_allocation(pointer, bytes, stream);
  const auto error = memory().allocate(pointer, bytes, Space::pool);
  if (error != cudaSuccess) return error;
  const auto filled = fill(*pointer, bytes, stream);
  if (filled == cudaSuccess) return cudaSuccess;
  Block block{};
  (void)memory().release(__func__, *pointer, Space::pool, Space::pool, block);
  give(*pointer, block);
  return filled;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  if (captured(stream)) return capture_free(pointer, stream);
  Block block{};
  const auto error = memory().release(__func__, pointer, Space::pool, Space::pool, block);
  if (error != cudaSuccess || block.bytes == 0) return error;
  const auto work = [pointer, block] {
    give(pointer, block);
    return cudaSuccess;
  };
  if (!streams_are_deferred()) return work();
  // If streams are not synchronised, work on another stream may use the memory after the free. The
  // fill replaces the old contents, so that the missing synchronisation shows.
  const auto filled = fill(pointer, block.bytes, stream);
  const auto queued = filled == cudaSuccess ? defer(stream, Kind::host, work) : filled;
  if (queued != cudaSuccess) give_after_failure(pointer, block);
  return queued;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (flags > (cudaHostAllocPortable | cudaHostAllocMapped)) {
    return failed(cudaErrorNotSupported, "cudaHostAlloc: these flags are not emulated");
  }
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return allocate(pointer, bytes, Space::pinned);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void* pointer) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return release(__func__, pointer, Space::pinned, Space::pinned);
}

namespace {
std::mutex registered_mutex;
std::set<void*> registered;
}  // namespace

// Registering memory has no effect in the emulation. The next two functions only refuse invalid
// calls: cudaHostRegister for a null pointer, 0 bytes or a pointer that is already registered, and
// cudaHostUnregister for a pointer that is not registered.
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  if (pointer == nullptr || bytes == 0) {
    return failed(cudaErrorInvalidValue, "cudaHostRegister: the address is null, or the size is 0");
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

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = memory().total();
  *free_bytes = *total_bytes - std::min(*total_bytes, memory().use(current_device()).device);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const auto found = block_around(pointer);
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
    return failed(cudaErrorInvalidValue, fmt::format("{}: a peak can only be set to 0", __func__));
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
    default:
      return failed(cudaErrorNotSupported,
                    "cudaMemPoolGetAttribute: this attribute is not emulated");
  }
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  int device = 0;
  return find_pool(__func__, pool, &device);
}
