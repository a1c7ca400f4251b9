#include "dist/nccl/cuda/nccl_memory.h"

#include <cuda_runtime.h>

#include <mutex>

#include "core/cuda.h"
#include "dist/nccl/cuda/nccl_check.h"

namespace tessera::dist {

// Shared by NcclMemory and the deleters of the memory that it has allocated, because the memory may
// live longer than NcclMemory.
struct NcclMemory::Registrations {
  int device;
  std::mutex mutex;
  ncclComm_t comm;  // nullptr once the communicator is gone

  void free(void* data, void* handle) {
    // Errors are ignored, because a deleter must not throw, and every call fails on a failed
    // device.
    (void)cudaSetDevice(device);
    (void)cudaDeviceSynchronize();
    const std::lock_guard lock(mutex);
    if (comm != nullptr) (void)ncclCommDeregister(comm, handle);
    (void)ncclMemFree(data);
  }
};

NcclMemory::NcclMemory(int device, ncclComm_t comm)
    : registrations_(std::make_shared<Registrations>()) {
  registrations_->device = device;
  registrations_->comm = comm;
}

std::shared_ptr<Storage> NcclMemory::allocate(int64_t bytes, Category category) {
  const Device device{DeviceType::cuda, registrations_->device};
  // The host cannot access memory of NCCL's allocator, but tests may ask for memory that the host
  // can access.
  if (bytes == 0 || cuda::memory_is_shared_with_host()) {
    return tessera::allocate(bytes, category, device);
  }
  try {
    return adopt(registered(bytes), bytes, category, device);
  } catch (const Error& error) {
    fail("allocate: NCCL has no memory for {} bytes of {} on {} ({} bytes held): {}", bytes,
         category_name(category), device.to_string(), memory_ledger(device).current_total(),
         error.what());
  }
}

std::shared_ptr<void> NcclMemory::registered(int64_t bytes) {
  cuda::use_device(registrations_->device);
  void* data = nullptr;
  TESSERA_NCCL(ncclMemAlloc(&data, static_cast<size_t>(bytes)));
  const std::lock_guard lock(registrations_->mutex);
  void* handle = nullptr;
  const ncclResult_t result =
      ncclCommRegister(registrations_->comm, data, static_cast<size_t>(bytes), &handle);
  try {
    check_nccl(result, "ncclCommRegister");  // reads NCCL's reason before another call changes it
  } catch (...) {
    (void)ncclMemFree(data);
    throw;
  }
  return {data, [registrations = registrations_, handle](void* memory) {
            registrations->free(memory, handle);
          }};
}

void NcclMemory::close() {
  const std::lock_guard lock(registrations_->mutex);
  registrations_->comm = nullptr;
}

}  // namespace tessera::dist
