// Characters that a terminal may obey instead of printing them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace tessera {

/// True if the text has a character from 0x00 to 0x1F, or 0x7F.
inline bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text,
                             [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; });
}

}  // namespace tessera
