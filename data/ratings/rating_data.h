// Opens the ratings that a recommender trains on and is evaluated on: which user rated, bought or
// looked at which item. A file's name and first line determine its format, unless `columns` does:
//
//   fields between tabs or '::'         MovieLens, as in u.data and ratings.dat
//   a header, fields between commas     as in MovieLens' ratings.csv
//   a header, NAME:TYPE between tabs    RecBole's interactions, as in NAME.inter
//   any text, with `columns`            fields in the order of `columns`
//   a folder                            has just one of u.data, ratings.dat, ratings.csv, *.inter
//   no path                             ratings drawn from known factors (drawn_ratings.h)
//
// Files may be compressed by gzip. All ratings are held in memory. docs/ratings.md describes the
// formats and the splits in detail.
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
  /// The names of a line's fields, separated by commas, such as "user,item,rating,time".
  ///  - The order is free; rating and time are optional; "-" stands for a field that is skipped.
  ///  - A list that begins with "header:" skips the file's first line, which has names.
  ///  - If `columns` is empty, the file determines the format.
  std::string columns = {};
  /// The ratings that are held out for validation:
  ///
  ///   "fold:k/K"   the ratings at places k - 1, k - 1 + K, ... of a random permutation;
  ///                1 <= k <= K, K >= 2
  ///   "last"       each user's latest rating (without times, the last one in the file), if the
  ///                user has two or more
  ///   "time:F"     the latest fraction F of all ratings, 0 < F < 1; needs times
  ///   "none"       none
  std::string split = "fold:1/5";
  uint64_t seed = 0;  // seed of the split's permutation
  DrawnRatingOptions drawn = {};
};

struct RatingData {
  std::string format;  // movielens, csv, inter, columns or drawn
  Ratings train = {};
  Ratings validation = {};
  std::vector<std::string> user_ids = {};  // user_ids[u] is the id of user u
  std::vector<std::string> item_ids = {};
  bool has_ratings = true;  // false: every rating's value is 1
  std::string split = {};   // as in the options
  int64_t dropped = 0;      // ratings dropped because a later rating has the same user and item

  int64_t users() const { return static_cast<int64_t>(user_ids.size()); }
  int64_t items() const { return static_cast<int64_t>(item_ids.size()); }
  /// Example: "100,000 ratings of 1,682 items by 943 users: 80,000 to train on, 20,000 to validate"
  std::string description() const;
};

/// Throws InputError
///  - if none of the formats above is found,
///  - if a line is malformed (the message has file and line),
///  - if `columns` is invalid or is given without a path,
///  - if a value in `drawn` is out of range,
///  - if the split is invalid, or needs times but the ratings have none,
///  - if the split leaves nothing to train on,
///  - if the split is not "none" and leaves nothing to validate.
RatingData open_rating_data(const RatingDataOptions& options);

}  // namespace tessera::data
