// NCCL's allocator, and the registrations of its memory with communicators.
#include <nccl.h>

#include <map>
#include <mutex>
#include <vector>

namespace emulated::nccl {

namespace {

struct Registration {
  ncclComm_t comm;
};

struct Registry {
  std::mutex mutex;
  std::map<void*, std::vector<Registration*>> blocks;  // by address from ncclMemAlloc
};

// Never destroyed, because the destructors of static objects may call ncclMemFree after main.
Registry& registry() {
  static auto& one = *new Registry;
  return one;
}

bool exists(ncclComm_t comm) {
  ncclResult_t failure = ncclSuccess;
  return ncclCommGetAsyncError(comm, &failure) == ncclSuccess;
}

}  // namespace

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
    for (Registration* const registration : block->second) {
      if (emulated::nccl::exists(registration->comm)) return ncclInvalidUsage;
      delete registration;  // its communicator no longer exists
    }
    registry().blocks.erase(block);
  }
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  ncclResult_t failure = ncclSuccess;
  if (ncclCommGetAsyncError(comm, &failure) != ncclSuccess || bytes == 0) {
    return ncclInvalidArgument;
  }
  if (failure != ncclSuccess) return failure;
  const std::lock_guard lock(registry().mutex);
  const auto block = registry().blocks.find(buffer);
  if (block == registry().blocks.end()) return ncclInvalidArgument;
  for (const Registration* const known : block->second) {
    if (known->comm == comm) return ncclInvalidUsage;
  }
  auto* const registration = new Registration{comm};
  block->second.push_back(registration);
  *handle = registration;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (!emulated::nccl::exists(comm)) return ncclInvalidArgument;
  const std::lock_guard lock(registry().mutex);
  for (auto& [pointer, registrations] : registry().blocks) {
    for (Registration* const registration : registrations) {
      if (registration != handle || registration->comm != comm) continue;
      std::erase(registrations, registration);
      delete registration;
      return ncclSuccess;
    }
  }
  return ncclInvalidArgument;
}
