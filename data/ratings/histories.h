// Holds the items that each user has in training. A user's items are never drawn as the user's
// negatives and are not recommended to the user. The model SVD++ takes a user's items as input.
//
//   const Histories histories(data.train, data.users(), data.items());
//   histories.of(user);                       // the user's items, ascending
//   histories.other(user, draw);              // an item that the user does not have
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/ratings/ratings.h"

namespace tessera::data {

class Histories {
 public:
  /// Collects the histories of `users` users; items are numbers in [0, items). Throws InputError if
  /// a user has an item twice.
  Histories(const Ratings& ratings, int64_t users, int64_t items);
  /// Takes existing lists: the items of user u are items[offsets[u]] to items[offsets[u + 1] - 1],
  /// ascending, each once and in [0, item_count). Throws InputError if offsets or items break this
  /// rule. The message begins with `source`, the file that has the lists.
  Histories(std::vector<int32_t> items, std::vector<int64_t> offsets, int64_t item_count,
            const std::string& source);

  int64_t users() const { return std::ssize(offsets_) - 1; }
  int64_t items() const { return item_count_; }
  std::span<const int32_t> of(int32_t user) const;
  /// Returns the items of all users, one user after the other.
  const std::vector<int32_t>& all() const { return items_; }
  /// Returns the offsets in all() at which each user's items begin; the last entry is the end.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t longest() const { return longest_; }

  bool has(int32_t user, int32_t item) const;
  /// Returns how many items the user does not have.
  int64_t others(int32_t user) const { return item_count_ - std::ssize(of(user)); }
  /// Returns entry `place` of the ascending list of items that the user does not have; `place` is
  /// in [0, others(user)).
  int32_t other(int32_t user, int64_t place) const;

 private:
  void check(const std::string& source) const;

  std::vector<int32_t> items_;
  std::vector<int64_t> offsets_;
  int64_t item_count_;
  int64_t longest_ = 0;
};

/// Returns how error messages name a user: by ids[user] or, if `ids` is empty, by the number
/// `user`.
std::string name_of_user(std::span<const std::string> ids, int32_t user);

}  // namespace tessera::data
