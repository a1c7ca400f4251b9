// Splits the lines of a text table into fields.
//
//   FieldSplitter splitter(",");
//   for (std::string_view line; lines.next(line);) {
//     const auto fields = splitter.split(line, lines);      // trimmed
//   }
#pragma once

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/text_lines.h"

namespace tessera::data {

class FieldSplitter {
 public:
  /// `separator` may have several characters, such as "::". The separator " " matches one or more
  /// spaces. Throws if `separator` is empty.
  explicit FieldSplitter(std::string_view separator);

  /// Returns the fields without spaces and tabs around them. The fields are valid until the next
  /// call or the next line. If the separator is a comma or a semicolon, a field may be quoted, with
  /// "" for a quote inside (RFC 4180). Spaces and tabs inside the quotes are kept. Throws
  /// InputError if a quoted field does not end in its line, or if there is anything but spaces and
  /// tabs between the closing quote and the separator.
  std::span<const std::string_view> split(std::string_view line, const TextLines& lines);

  const std::string& separator() const { return separator_; }

 private:
  std::string_view take_quoted(std::string_view& rest, const TextLines& lines);

  std::string separator_;
  bool has_quotes_;
  std::vector<std::string_view> fields_;
  std::deque<std::string> unquoted_;  // fields that had "" inside; a deque never moves its elements
};

/// Returns `text` without spaces and tabs at either end.
std::string_view trimmed(std::string_view text);

/// Returns the name of a separator for error messages, such as "tabs" or "'::'".
std::string name_of_separator(std::string_view separator);

}  // namespace tessera::data
