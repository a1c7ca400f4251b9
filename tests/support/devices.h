// The devices that a test body runs on:
//   const Device device = GENERATE(from_range(devices()));
#pragma once

#include <vector>

#include "core/device.h"

namespace tessera::test {

inline std::vector<Device> devices() { return {Device{}}; }

}  // namespace tessera::test
