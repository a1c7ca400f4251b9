// Memory from NCCL's own allocator, registered with a communicator. NCCL sends from it and receives
// into it directly, without copying through its own buffers.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>

#include "core/memory.h"

namespace tessera::dist {

class NcclMemory {
 public:
  /// For a communicator of GPU `device`.
  NcclMemory(int device, ncclComm_t comm);

  /// For long-lived buffers: an allocation takes milliseconds and whole pages of the GPU (2 MiB).
  /// Before memory is freed the host waits for the device, whose streams may still use it. Throws
  /// if there is not enough memory.
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category);

  /// To be called before the communicator is destroyed. Memory that is freed later is then not
  /// deregistered. The memory itself stays valid.
  void close();

 private:
  std::shared_ptr<void> registered(int64_t bytes);

  struct Registrations;
  std::shared_ptr<Registrations> registrations_;
};

}  // namespace tessera::dist
