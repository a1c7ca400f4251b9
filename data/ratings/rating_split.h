// Which ratings are trained on, and which are held out to validate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/ratings/ratings.h"

namespace tessera::data {

/// A split as RatingDataOptions has it.
struct RatingSplit {
  enum class Kind { fold, last, time, none };

  Kind kind = Kind::none;
  int64_t fold = 0;  // from 1
  int64_t folds = 0;
  double fraction = 0.0;  // of the latest
};

/// Throws InputError for a text that is none.
RatingSplit parse_rating_split(const std::string& text);

/// Of the ratings that one user gave one item the one with the latest time stays, at its place; of
/// equal times, or without times, the last one. Returns how many are dropped.
int64_t drop_duplicates(Ratings& ratings, int64_t users, int64_t items);

/// A rating's place in the permutation of `count` ratings that the seed chooses.
uint64_t place_of_rating(uint64_t index, uint64_t count, uint64_t seed);

/// Takes the ratings to validate out of `ratings`; both keep their order. What is held out depends
/// on the ratings, their order, the split and the seed alone, not on the machine or its threads.
/// Throws where the split needs times that there are none of.
Ratings hold_out(Ratings& ratings, const RatingSplit& split, uint64_t seed, int64_t users);

}  // namespace tessera::data
