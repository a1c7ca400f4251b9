// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// Returns the number with commas between thousands: 1234567 -> "1,234,567".
std::string grouped(int64_t number);
/// Returns a number with its noun: 1, "rank" -> "1 rank"; 1234, "rank" -> "1,234 ranks". A noun
/// whose plural does not end in a mere s needs `plural`: "classes".
std::string counted(int64_t number, std::string_view noun, std::string_view plural = "");

}  // namespace tessera
