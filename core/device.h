// Where a tensor lives and a kernel runs. Besides the host, `cpu`, there is a second device in host
// memory, `cpu:1`: kernels run on it as on the host, and its memory is counted on its own. Tests
// take it for a computing device that is not the host.
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

/// Where a tensor is made when nothing else is said: the CPU, until it is set.
Device default_device();
void set_default_device(Device device);

}  // namespace tessera
