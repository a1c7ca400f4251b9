// What a recommender trains on and is evaluated on: who rated, bought or looked at which item. The
// format is found by what is at a path:
//
//   u.data, ratings.dat, ratings.csv    MovieLens: tabs, '::', or commas below a header
//   NAME.inter                          RecBole's interactions: tabs below a header of NAME:TYPE
//   any text, with `columns`            fields in the order that `columns` has
//   a folder                            exactly one of its files has a name as above
//   no path                             ratings of planted factors (drawn_ratings.h)
//
// Files may be compressed by gzip. All ratings are held in memory. docs/ratings.md has the rules.
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
  /// The fields of a line, as "user,item,rating,time": in any order, "-" for a field that is
  /// skipped, rating and time optional. "header:" comes first if the first line has names. Empty:
  /// the format is found by the file.
  std::string columns = {};
  /// "fold:k/K": holds out the ratings whose place in a random permutation is k - 1 modulo K, 1 <=
  /// k <= K, K >= 2. "last": holds out each user's latest rating, for users with two or more.
  /// "time:F": holds out the latest fraction F of all ratings, which needs times. "none": holds out
  /// nothing.
  std::string split = "fold:1/5";
  uint64_t seed = 0;  // seed of the split's permutation
  DrawnRatingOptions drawn = {};
};

struct RatingData {
  std::string format;  // movielens, csv, inter, columns or drawn
  Ratings train = {};
  Ratings validation = {};
  std::vector<std::string> user_ids = {};  // by number, as in the file
  std::vector<std::string> item_ids = {};
  bool has_ratings = true;  // false: every value is 1
  std::string split = {};   // as in the options
  int64_t dropped = 0;      // ratings with a later one of the same user and item

  int64_t users() const { return static_cast<int64_t>(user_ids.size()); }
  int64_t items() const { return static_cast<int64_t>(item_ids.size()); }
  /// "100,000 ratings of 1,682 items by 943 users: 80,000 to train on, 20,000 to validate"
  std::string description() const;
};

/// Throws InputError, with file and line, where none of these formats is found, a line is
/// malformed, or the split is invalid or leaves nothing to train on or to validate.
RatingData open_rating_data(const RatingDataOptions& options);

}  // namespace tessera::data
