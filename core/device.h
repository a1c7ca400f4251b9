// Devices, which store tensors and run kernels. `cpu` is the host. `cpu:1` also stores its tensors
// in host memory and runs its kernels on the CPU. But `cpu:1` is a separate device, and its memory
// is counted separately. Tests use `cpu:1` in place of a GPU.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace tessera {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool operator==(const Device&) const = default;
  std::string to_string() const {
    if (is_cpu()) return index == 0 ? "cpu" : fmt::format("cpu:{}", index);
    return fmt::format("cuda:{}", index);
  }
};

/// The device of new tensors for which no device is given: the CPU, until set_default_device
/// changes it.
Device default_device();
void set_default_device(Device device);

}  // namespace tessera
