// Device memory. It lies in one range of addresses, which the host cannot access, as with a GPU.
// The emulator makes it accessible while it runs work of the device. The protection is that of the
// process: while one thread runs such work, accesses of other threads go unnoticed.
//
// The environment variable TESSERA_EMULATED_PROTECT=0 leaves the memory accessible to the host.
// With the address sanitizer, memory beyond an allocation and freed memory are poisoned.
#pragma once

#include <cstddef>

namespace emulated {

/// Returns device memory, aligned to 256 bytes, with undefined contents; nullptr if no addresses
/// are left.
void* take_device_memory(size_t bytes);
/// Gives back what take_device_memory(bytes) has returned.
void give_device_memory(void* memory, size_t bytes);

/// Device memory is accessible as long as an object of this class lives.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace emulated
