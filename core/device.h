// Devices: where a tensor lives and a kernel runs. Besides the host, `cpu`, there is a second
// device in host memory, `cpu:1`. Kernels run on it as on the host, and its memory is counted
// separately. Tests use it in place of a GPU, as a device that is not the host.
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
