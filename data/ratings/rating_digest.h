// Computes a digest of ratings, to check that all ranks have the same ratings.
#pragma once

#include <cstdint>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// Digests (core/digest.h) the ids in order, has_ratings, and the users, items, values and times of
/// training and validation. The path, the format and the text of the split do not affect the
/// digest.
uint64_t digest_of_ratings(const RatingData& data);

}  // namespace tessera::data
