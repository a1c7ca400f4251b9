#include "data/files/text_fields.h"

#include <algorithm>

namespace tessera::data {

std::string_view trimmed(std::string_view text) {
  constexpr auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string name_of_separator(std::string_view separator) {
  if (separator == "\t") return "tabs";
  if (separator == " ") return "spaces";
  return fmt::format("'{}'", separator);
}

FieldSplitter::FieldSplitter(std::string_view separator)
    : separator_(separator), has_quotes_(separator == "," || separator == ";") {
  TESSERA_CHECK(!separator.empty(), "fields: the separator is empty");
}

std::span<const std::string_view> FieldSplitter::split(std::string_view line,
                                                       const TextLines& lines) {
  fields_.clear();
  unquoted_.clear();
  const bool spaces = separator_ == " ";
  std::string_view rest = spaces ? trimmed(line) : line;
  while (true) {
    const size_t begin = has_quotes_ ? rest.find_first_not_of(" \t") : rest.npos;
    if (begin != rest.npos && rest[begin] == '"') {
      fields_.push_back(take_quoted(rest, lines));
    } else {
      const size_t length = std::min(rest.find(separator_), rest.size());
      fields_.push_back(trimmed(rest.substr(0, length)));
      rest.remove_prefix(length);
    }
    if (rest.empty()) return fields_;
    rest.remove_prefix(separator_.size());
    while (spaces && rest.starts_with(' ')) rest.remove_prefix(1);
  }
}

// Removes a quoted field from the beginning of `rest`, up to the separator. Returns the field.
std::string_view FieldSplitter::take_quoted(std::string_view& rest, const TextLines& lines) {
  rest.remove_prefix(rest.find('"') + 1);
  const std::string_view begin = rest;
  bool has_quote = false;
  size_t end = rest.find('"');
  while (end != rest.npos && rest.substr(end + 1).starts_with('"')) {
    has_quote = true;
    end = rest.find('"', end + 2);
  }
  if (end == rest.npos) lines.refuse("has a quote that does not end: {}", excerpt(begin));
  std::string_view field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  const size_t length = std::min(rest.find(separator_), rest.size());
  const std::string_view between = rest.substr(0, length);
  if (!trimmed(between).empty()) {
    lines.refuse("has {} after a quoted field, expected {}", excerpt(between),
                 name_of_separator(separator_));
  }
  rest.remove_prefix(length);
  if (!has_quote) return field;
  std::string& text = unquoted_.emplace_back();
  for (size_t i = 0; i < field.size(); ++i) {
    text += field[i];
    if (field[i] == '"') ++i;  // skips the second quote of a pair
  }
  return text;
}

}  // namespace tessera::data
