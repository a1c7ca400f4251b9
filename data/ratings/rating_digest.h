// Whether two ranks have the same ratings.
#pragma once

#include <cstdint>

#include "data/ratings/rating_data.h"

namespace tessera::data {

/// A digest (core/digest.h) of everything: the ids in order, whether there are ratings, and users,
/// items, values and times of training and validation. Where they were read from and by which name
/// the split was asked for do not count.
uint64_t digest_of_ratings(const RatingData& data);

}  // namespace tessera::data
