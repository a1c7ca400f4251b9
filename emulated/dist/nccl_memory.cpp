// NCCL's allocator, and the registrations of its memory with communicators.
#include "emulated/dist/nccl_memory.h"

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace emulated::nccl {

namespace {

struct Registration {
  ncclComm_t comm;
};

struct Registry {
  std::mutex mutex;
  // By address from ncclMemAlloc. A registration's handle is the address of the Registration.
  std::map<void*, std::vector<std::unique_ptr<Registration>>> blocks;
};

// Never destroyed, because the destructors of static objects may call ncclMemFree after main.
Registry& registry() {
  static auto& one = *new Registry;
  return one;
}

}  // namespace

void end_registrations(ncclComm_t comm) {
  const std::lock_guard lock(registry().mutex);
  for (auto& [pointer, registrations] : registry().blocks) {
    std::erase_if(registrations, [&](const auto& known) { return known->comm == comm; });
  }
}

}  // namespace emulated::nccl

using emulated::nccl::Registration;
using emulated::nccl::registry;

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  if (cudaMalloc(pointer, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(registry().mutex);
  registry().blocks[*pointer];
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  {
    const std::lock_guard lock(registry().mutex);
    const auto block = registry().blocks.find(pointer);
    if (block == registry().blocks.end()) return ncclInvalidArgument;
    if (!block->second.empty()) return ncclInvalidUsage;
    registry().blocks.erase(block);
  }
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  // Locked first, so that an abort on another thread either precedes the check or ends the new
  // registration.
  const std::lock_guard lock(registry().mutex);
  ncclResult_t failure = ncclSuccess;
  if (ncclCommGetAsyncError(comm, &failure) != ncclSuccess || bytes == 0) {
    return ncclInvalidArgument;
  }
  if (failure != ncclSuccess) return failure;
  const auto block = registry().blocks.find(buffer);
  if (block == registry().blocks.end()) return ncclInvalidArgument;
  for (const auto& known : block->second) {
    if (known->comm == comm) return ncclInvalidUsage;
  }
  block->second.push_back(std::make_unique<Registration>(Registration{comm}));
  *handle = block->second.back().get();
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  const std::lock_guard lock(registry().mutex);
  for (auto& [pointer, registrations] : registry().blocks) {
    const auto ended = std::erase_if(registrations, [&](const auto& known) {
      return known.get() == handle && known->comm == comm;
    });
    if (ended > 0) return ncclSuccess;
  }
  return ncclInvalidArgument;
}
