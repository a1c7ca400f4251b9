#include "core/text/control_character.h"

#include <iterator>

#include <fmt/format.h>

namespace tessera {

std::string with_escaped_controls(std::string_view text) {
  const auto byte_at = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    // U+0080 to U+009F are the bytes C2 80 to C2 9F.
    const uint8_t next = byte_at(i + 1);
    const bool two_bytes = byte_at(i) == 0xC2 && next >= 0x80 && next < 0xA0;
    if (two_bytes) ++i;
    if (two_bytes || is_control_character(text[i])) {
      fmt::format_to(std::back_inserter(result), "\\u{:04x}", byte_at(i));
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace tessera
