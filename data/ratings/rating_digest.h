// Computes a digest of ratings, to check that all ranks have the same ratings.
#pragma once

#include <cstdint>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// Returns a digest (core/digest.h) of the members user_ids, item_ids, has_ratings, train and
/// validation. The other members and the path of the files do not affect the digest.
uint64_t digest_of_ratings(const RatingData& data);

}  // namespace tessera::data
