#include "apps/console/shell_word.h"

#include <cstdint>

#include <fmt/format.h>

#include "core/text/control_character.h"

namespace tessera::apps {

std::string shell_word(const std::string& path) {
  if (path.starts_with('-')) return shell_word("./" + path);
  constexpr const char* plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+./,:@%";
  if (!path.empty() && path.find_first_not_of(plain) == std::string::npos) return path;
  const bool escapes = has_control_character(path);
  std::string word = escapes ? "$'" : "'";
  for (const char c : path) {
    if (escapes && (is_control_character(c) || c == '\\' || c == '\'')) {
      word += fmt::format("\\{:03o}", static_cast<uint8_t>(c));
    } else {
      word += c == '\'' ? "'\\''" : std::string(1, c);
    }
  }
  return word + "'";
}

}  // namespace tessera::apps
