// Device memory: one range of addresses that the host cannot access, as with a GPU. The emulator
// makes the range accessible while it runs device work. The protection applies to the whole
// process: while one thread runs device work, accesses by other threads are not detected.
//
// The environment variable TESSERA_EMULATED_PROTECT=0 leaves the memory accessible to the host.
// The address sanitizer detects accesses to freed memory and beyond an allocation.
#pragma once

#include <cstddef>

namespace emulated {

/// Returns device memory, aligned to 256 bytes, with undefined contents; nullptr if no addresses
/// are left.
void* take_device_memory(size_t bytes);
/// Frees memory that take_device_memory(bytes) has returned.
void give_device_memory(void* memory, size_t bytes);

/// Device memory is accessible while at least one object of this class exists.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace emulated
