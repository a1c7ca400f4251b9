// Reads a file of ratings in one pass.
#pragma once

#include <string>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// Reads all ratings of a file, or of the only file of ratings in a folder, into `train`, and sets
/// format, ids and has_ratings. Duplicates are kept. Throws InputError as open_rating_data does.
RatingData read_rating_file(const std::string& path, const std::string& columns);

}  // namespace tessera::data
