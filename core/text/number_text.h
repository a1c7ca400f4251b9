// Formats numbers for people.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tessera {

/// Returns the number with commas between thousands: 1234567 -> "1,234,567".
std::string grouped(int64_t number);
/// Returns a number with its noun: 1, "rank" -> "1 rank"; 1234, "rank" -> "1,234 ranks". `plural`
/// is needed only if adding an s does not make the plural, as for "classes".
std::string counted(int64_t number, std::string_view noun, std::string_view plural = "");

/// Returns the value. For any NaN, returns a NaN without sign, because fmt prints "-nan" for a NaN
/// with a sign. The sign of a NaN has no meaning: it depends on the processor's instructions.
template <std::floating_point T>
T without_nan_sign(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

}  // namespace tessera
