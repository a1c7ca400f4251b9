// Converts text to lower case, so that names can be compared without regard to case.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace tessera {

/// Returns the text with small letters instead of the capital letters A to Z. Other bytes stay as
/// they are, because no program here sets a locale.
inline std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace tessera
