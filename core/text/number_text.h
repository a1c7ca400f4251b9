// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

/// Returns the number with commas between thousands: 1234567 -> "1,234,567".
std::string grouped(int64_t number);

}  // namespace tessera
