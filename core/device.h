// Where a tensor lives and a kernel runs.
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
  std::string to_string() const { return is_cpu() ? "cpu" : fmt::format("cuda:{}", index); }
};

}  // namespace tessera
