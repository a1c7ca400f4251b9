// The layout of a file of ratings: the meaning of each field of a line, and the separator. If
// RatingDataOptions::columns is empty, the file's name and first line determine the layout.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/files/text_lines.h"

namespace tessera::data {

enum class RatingField { skipped, user, item, rating, time };

struct RatingLayout {
  std::string format;  // "movielens", "csv", "inter" or "columns"
  std::string separator;
  std::vector<RatingField> fields;
  bool has_header = false;

  bool has(RatingField field) const;
  /// Returns the names of the fields, such as "user, item, -, time" if the third field is skipped.
  std::string names() const;
};

/// Parses RatingDataOptions::columns, which must not be empty. The separator, which depends on the
/// file, stays empty. Throws InputError if the text is malformed.
RatingLayout parse_rating_columns(std::string_view columns);

/// Detects the layout. `columns` is RatingDataOptions::columns; `first_line` is the line that was
/// last read from `lines`. Throws InputError if the first line fits no known format, or if
/// `columns` is invalid.
RatingLayout find_rating_layout(const TextLines& lines, std::string_view first_line,
                                const std::string& columns);

}  // namespace tessera::data
