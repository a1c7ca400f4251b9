// Characters that a terminal may obey instead of printing them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// True for the characters 0x00 to 0x1F, and 0x7F.
inline bool is_control_character(char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; }

inline bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, is_control_character);
}

/// Returns the UTF-8 text with control characters written as in JSON, such as \u001b, so that a
/// terminal prints them. Besides the characters above, this replaces U+0080 to U+009F. All other
/// characters stay unchanged.
std::string with_escaped_controls(std::string_view text);

}  // namespace tessera
