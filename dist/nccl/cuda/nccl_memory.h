// Memory from NCCL's own allocator, registered with a communicator. NCCL sends from this memory and
// receives into this memory directly, without a copy through NCCL's internal buffers.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>

#include "core/memory.h"

namespace tessera::dist {

class NcclMemory {
 public:
  /// `comm` is NCCL's communicator, on GPU `device`.
  NcclMemory(int device, ncclComm_t comm);

  /// Allocates memory for long-lived buffers: an allocation takes milliseconds, and occupies whole
  /// pages of GPU memory (2 MiB each). Before memory is freed, the host synchronizes with the
  /// device, because streams may still use the memory. Throws if there is not enough memory. For 0
  /// bytes, and in tests that ask for memory that the host can access, tessera::allocate allocates
  /// instead.
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category);

  /// To be called before the communicator is destroyed. The memory stays valid, but is not
  /// deregistered any more when it is freed.
  void close();

 private:
  std::shared_ptr<void> registered(int64_t bytes);

  struct Registrations;
  std::shared_ptr<Registrations> registrations_;
};

}  // namespace tessera::dist
