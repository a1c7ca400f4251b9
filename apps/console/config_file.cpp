#include "apps/console/config_file.h"

#include <sstream>
#include <string_view>

#include "apps/console/flag_value.h"
#include "core/error.h"
#include "core/text/json_read.h"

namespace tessera::apps {
namespace {

constexpr std::string_view blanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

bool is_name(std::string_view text) {
  constexpr std::string_view letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  return !text.empty() && text.find_first_not_of(letters) == std::string_view::npos;
}

// Returns the value after `=`, without quotes. A value without quotes ends where a comment begins:
// at a `#` that follows a blank or begins the value.
std::string value_of(const std::string& where, std::string_view text) {
  const bool in_quotes = text.starts_with('"') || text.starts_with('\'');
  if (!in_quotes) {
    size_t end = text.find('#');
    while (end != std::string_view::npos && end > 0 &&
           blanks.find(text[end - 1]) == std::string_view::npos) {
      end = text.find('#', end + 1);
    }
    return std::string(trimmed(text.substr(0, end)));
  }
  const size_t end = text.find(text[0], 1);
  if (end == std::string_view::npos) fail_input("{}: the closing quotation mark is missing", where);
  const std::string_view rest = trimmed(text.substr(end + 1));
  if (!rest.empty() && rest[0] != '#') {
    fail_input("{}: {} follows a value in quotes", where, quoted(std::string(rest)));
  }
  return std::string(text.substr(1, end - 1));
}

}  // namespace

std::vector<ConfigLine> read_config(const std::string& path) {
  constexpr int64_t most_bytes = int64_t{1} << 20;
  std::string bytes = read_text_file(path, most_bytes);
  // Some editors write a byte order mark at the beginning of UTF-8 files.
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.erase(0, 3);
  std::istringstream text(bytes);
  std::vector<ConfigLine> lines;
  int64_t number = 0;
  for (std::string whole; std::getline(text, whole);) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    // Paths are passed to the system as C strings, which would end at a NUL byte.
    if (whole.find('\0') != std::string::npos) {
      fail_input("{}: has a NUL byte, expected text", where);
    }
    const std::string_view line = trimmed(whole);
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_name(name)) {
      fail_input("{}: {} is not a flag, expected NAME = VALUE", where, quoted(std::string(line)));
    }
    lines.push_back({where, std::string(name), value_of(where, trimmed(line.substr(equals + 1)))});
  }
  return lines;
}

}  // namespace tessera::apps
