// Draws ratings from known factors, the "planted" factors. So training needs no file, and a test
// knows the best result that a model can reach. The rating of item i by user u is
//
//   rating(u, i) = 3.5 + b_u + c_i + p_u . q_i + noise
//
//  - The biases b and c have the standard deviation 0.4.
//  - The factors p and q have `rank` values each. Their inner product has the standard deviation
//    0.6.
//  - The noise has the standard deviation `noise`.
//
// Biases, factors and noise are approximately normal: each value comes from a sum of twelve uniform
// numbers. The ratings are neither rounded nor clamped, so the noise's deviation is the RMSE of the
// best prediction.
//
// Some users are more active and some items more popular than others. The n users and the m items
// are each put in a random order, with the places r = 0, 1, 2, ....
//  - If there are at least n ratings, each user first gets one rating. The remaining ratings are
//    shared: the share of the user at place r is in proportion to 1 / (r + 1 + floor(n / 20)).
//  - A user rates at most max(1, floor(3 m / 4)) items. Ratings beyond this limit go to other
//    users.
//  - A user's items are drawn without repetition. In each draw, the probability of the item at
//    place r is in proportion to 1 / (r + 1 + floor(m / 20)).
//
// Every drawn value depends only on the options and on its user, item or pair. All values are
// computed in integers or by correctly rounded operations. So every machine draws the same ratings.
#pragma once

#include <cstdint>
#include <vector>

#include "data/ratings/ratings.h"

namespace tessera::data {

struct DrawnRatingOptions {
  int64_t users = 1000;
  int64_t items = 600;
  int64_t ratings = 60'000;  // at most half of all pairs, and below 2^32
  int64_t rank = 8;
  double noise = 0.5;
  uint64_t seed = 0;
};

class PlantedRatings {
 public:
  /// Throws InputError if an option is out of range.
  explicit PlantedRatings(const DrawnRatingOptions& options);

  /// Returns the rating of a pair without its noise.
  double expected(int64_t user, int64_t item) const;
  /// Returns all ratings, grouped by user, with times within one year.
  Ratings draw() const;

 private:
  /// The biases and factors of all users, or of all items, as integers in units of 2^-16. The
  /// product of two factors is in units of 2^-32.
  struct Planted {
    std::vector<int64_t> biases;
    std::vector<int64_t> factors;  // (users or items, rank)
  };

  Planted plant(const char* purpose, int64_t count) const;
  int64_t fixed_expected(int64_t user, int64_t item) const;
  std::vector<int64_t> counts_of_users() const;

  DrawnRatingOptions options_;
  Planted users_;
  Planted items_;
};

}  // namespace tessera::data
