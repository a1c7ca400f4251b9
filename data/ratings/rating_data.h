// What a recommender trains on and is evaluated on: who rated, bought or looked at what, found by
// what is at a path:
//
//   u.data, ratings.dat, ratings.csv    MovieLens: tabs, '::', or commas below a header
//   NAME.inter                          RecBole's interactions: tabs below a header of NAME:TYPE
//   any text, with `columns`            fields in the order that `columns` has
//   a folder                            that has one of the first three, or one .inter
//   no path                             ratings of planted factors (drawn_ratings.h)
//
// each compressed by gzip or not. The whole of it is in memory; docs/ratings.md has the rules.
//
//   RatingData data = open_rating_data({.path = "ml-100k", .split = "fold:1/5"});
//   for (int64_t i = 0; i < data.train.size(); ++i) { ... data.train.users[i] ... }
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/ratings/drawn_ratings.h"
#include "data/ratings/ratings.h"

namespace tessera::data {

struct RatingDataOptions {
  std::string path = {};
  /// What the fields of a line are, as "user,item,rating,time": in any order, "-" for one that is
  /// skipped, rating and time optional; behind "header:" if the first line has names. Empty: found.
  std::string columns = {};
  /// "fold:k/K": those whose place in a permutation is k - 1 modulo K validate, 1 <= k <= K, K
  /// >= 2. "last": each user's latest, of users with two or more. "time:F": the latest fraction F
  /// of all, which needs times. "none": all are trained on.
  std::string split = "fold:1/5";
  uint64_t seed = 0;  // of the split's permutation
  DrawnRatingOptions drawn = {};
};

struct RatingData {
  std::string format;  // movielens, csv, inter, columns or drawn
  Ratings train = {};
  Ratings validation = {};
  std::vector<std::string> user_ids = {};  // by number, as in the file
  std::vector<std::string> item_ids = {};
  bool has_ratings = true;  // false: every value is 1
  std::string split = {};   // as given
  int64_t dropped = 0;      // earlier ratings of the same user and item

  int64_t users() const { return static_cast<int64_t>(user_ids.size()); }
  int64_t items() const { return static_cast<int64_t>(item_ids.size()); }
  /// "100,000 ratings of 1,682 items by 943 users: 80,000 to train on, 20,000 to validate"
  std::string description() const;
};

/// Throws InputError, with file and line, where nothing of the above is found, a line is not what
/// it should be, or the split is none or leaves nothing to train on or to validate.
RatingData open_rating_data(const RatingDataOptions& options);

}  // namespace tessera::data
