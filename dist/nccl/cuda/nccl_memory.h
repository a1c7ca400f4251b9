// Memory from NCCL's own allocator, registered with a communicator: what NCCL sends from there and
// receives there need not pass through buffers of its own.
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
  /// Before it is freed the host waits for the device, whose streams may still use it. Throws where
  /// there is not enough.
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category);

  /// The communicator is going away: nothing is registered any more. Memory stays until freed.
  void close();

 private:
  std::shared_ptr<void> registered(int64_t bytes);

  struct Registrations;
  std::shared_ptr<Registrations> registrations_;
};

}  // namespace tessera::dist
