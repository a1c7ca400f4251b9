// Copies and fills of memory.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emulated/capture.h"
#include "emulated/errors.h"
#include "emulated/launch_record.h"
#include "emulated/memory.h"

namespace emulated {

namespace {

// Checks the source or the destination of a copy: `bytes` bytes from `address` on. If `on_device`,
// these bytes must lie inside one block of device memory. Otherwise they may also be host memory.
cudaError_t check_end(const char* call, const void* address, size_t bytes, bool on_device) {
  const auto found = block_around(address);
  if (!found) {
    return on_device ? failed(cudaErrorInvalidValue,
                              fmt::format("{}: {} is not device memory", call, address))
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
                  fmt::format("{}: {} bytes from byte {} on, but the memory has {} bytes (from {})",
                              call, bytes, offset, block.bytes, allocator_of(block.space)));
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
    return failed(cudaErrorInvalidValue, fmt::format("{}: source and destination overlap", call));
  }
  // A graph cannot copy pageable memory, because such a copy needs the host's help.
  if (!block_around(to) || !block_around(from)) {
    const auto error = check_not_captured(stream, "a copy of pageable memory");
    if (error != cudaSuccess) return error;
  }
  // CUDA promises: when the call returns, a pageable source has been read, and a pageable
  // destination has been written.
  const bool waits = !block_around(to);
  if (streams_are_deferred() && !block_around(from) && !waits) {
    const auto* const begin = static_cast<const std::byte*>(from);
    return enqueue(stream, [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
      return cudaSuccess;
    });
  }
  const auto error = enqueue(stream, [=] {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
  return error == cudaSuccess && waits ? wait_for_stream(stream) : error;
}

cudaError_t set(const char* call, void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!block_around(to)) {
    return failed(cudaErrorInvalidValue,
                  fmt::format("{}: {} is not memory from CUDA", call, to));
  }
  if (const auto error = check_end(call, to, bytes, false); error != cudaSuccess) return error;
  return enqueue(stream, [=] {
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}

}  // namespace

}  // namespace emulated

using namespace emulated;

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  const auto error = copy(__func__, to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? wait_for_stream(nullptr) : error;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  record_call(__func__);
  return copy(__func__, to, from, bytes, kind, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const auto error = check_no_capture(__func__); error != cudaSuccess) return error;
  return set(__func__, to, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (const auto error = check_stream(stream, __func__); error != cudaSuccess) return error;
  record_call(__func__);
  return set(__func__, to, value, bytes, stream);
}
