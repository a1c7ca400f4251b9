// Computes a digest of ratings, to check that all ranks have the same ratings.
#pragma once

#include <cstdint>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// Digests (core/digest.h) the ids in the order of their numbers, has_ratings, and the users,
/// items, values and times of the ratings for training and validation. The members `format`,
/// `split` and `dropped` do not affect the digest, and neither does the path of the files.
uint64_t digest_of_ratings(const RatingData& data);

}  // namespace tessera::data
