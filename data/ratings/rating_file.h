// A file of ratings, read in one pass.
#pragma once

#include <string>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// All ratings of a file, or of the one that a folder has, in `train`; format, ids and whether it
/// has ratings. Duplicates are still there. Throws InputError as open_rating_data does.
RatingData read_rating_file(const std::string& path, const std::string& columns);

}  // namespace tessera::data
