// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

/// 1234567 -> "1,234,567"
std::string grouped(int64_t number);

}  // namespace tessera
