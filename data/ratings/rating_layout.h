// The layout of a file of ratings: what each field of a line is, and what separates the fields. If
// the user names no columns, the file's name and first line determine the layout.
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
  /// "user, item, rating, time"; a skipped field is "-".
  std::string names() const;
};

/// Detects the layout. `columns` is as in RatingDataOptions, empty for none; `first_line` is the
/// line last taken from `lines`. Throws InputError if no known format begins with such a line, or
/// if `columns` are invalid.
RatingLayout find_rating_layout(const TextLines& lines, std::string_view first_line,
                                const std::string& columns);

}  // namespace tessera::data
