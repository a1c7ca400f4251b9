// Reads a file of ratings in one pass.
#pragma once

#include <string>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// Reads a file of ratings. `train` of the result has all ratings, duplicates included. Also sets
/// the result's format, user_ids, item_ids and has_ratings. `path` is a file of ratings, or a
/// folder with exactly one such file. Throws InputError as open_rating_data does.
RatingData read_rating_file(const std::string& path, const std::string& columns);

}  // namespace tessera::data
