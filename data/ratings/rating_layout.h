// Which field of a line is what, found by a file's name and its first line.
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
  /// "user, item, rating, time"; what is skipped is "-".
  std::string names() const;
};

/// `columns` as RatingDataOptions has it, empty for none; `first_line` is the last that was taken
/// from `lines`. Throws InputError where nothing known begins so, or columns make no sense.
RatingLayout find_rating_layout(const TextLines& lines, std::string_view first_line,
                                const std::string& columns);

}  // namespace tessera::data
