// Splits ratings into a training part and a validation part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/ratings/ratings.h"

namespace tessera::data {

/// RatingDataOptions::split, parsed.
struct RatingSplit {
  enum class Kind { fold, last, time, none };

  Kind kind = Kind::none;
  int64_t fold = 0;       // k in fold:k/K, from 1
  int64_t folds = 0;      // K in fold:k/K
  double fraction = 0.0;  // F in time:F: the latest fraction of all ratings is held out
};

/// Parses RatingDataOptions::split. Throws InputError if the text is malformed.
RatingSplit parse_rating_split(const std::string& text);

/// Keeps one rating for each pair of user and item: the latest, or the last one in the file if
/// times are equal or absent. The order of the kept ratings does not change. Returns the number of
/// dropped ratings.
int64_t drop_duplicates(Ratings& ratings, int64_t users, int64_t items);

/// Returns the place of rating `index` in a random permutation of `count` ratings. The seed
/// determines the permutation.
uint64_t place_of_rating(uint64_t index, uint64_t count, uint64_t seed);

/// Moves the validation ratings out of `ratings` and returns them; both parts keep their order.
/// The choice depends only on the ratings, their order, the split and the seed, not on the machine
/// or its threads. Throws if the split needs times and the ratings have none.
Ratings hold_out(Ratings& ratings, const RatingSplit& split, uint64_t seed, int64_t users);

}  // namespace tessera::data
