// The fields of a line of a table.
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
  /// One or two characters. A space stands for one or more of them.
  explicit FieldSplitter(std::string_view separator);

  /// The fields, without spaces around them; they stay until the next call or the next line.
  /// Between commas and semicolons a field may stand in quotes, with "" for a quote in it (RFC
  /// 4180); one that does not end in its line is refused.
  std::span<const std::string_view> split(std::string_view line, const TextLines& lines);

  const std::string& separator() const { return separator_; }

 private:
  std::string_view take_quoted(std::string_view& rest, const TextLines& lines);

  std::string separator_;
  bool has_quotes_;
  std::vector<std::string_view> fields_;
  std::deque<std::string> unquoted_;  // fields that had "" in them; a deque keeps their addresses
};

/// Without spaces and tabs at either end.
std::string_view trimmed(std::string_view text);

/// How a separator is called in errors: "tabs", "'::'".
std::string name_of_separator(std::string_view separator);

}  // namespace tessera::data
