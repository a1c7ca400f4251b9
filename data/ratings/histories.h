// Which items each user has in training: what no negative may be, what SVD++ reads, and what nobody
// is recommended again.
//
//   const Histories histories(data.train, data.users(), data.items());
//   histories.of(user);                       // ascending
//   histories.other(user, draw);              // an item that the user has not
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/ratings/ratings.h"

namespace tessera::data {

class Histories {
 public:
  /// Of `users` users, each of whose items is in [0, items).
  Histories(const Ratings& ratings, int64_t users, int64_t items);
  /// Of lists that are there already: user u has items[offsets[u]] up to items[offsets[u + 1]],
  /// ascending. Throws InputError where they are no such lists; `source`, the file that has them,
  /// begins it.
  Histories(std::vector<int32_t> items, std::vector<int64_t> offsets, int64_t item_count,
            const std::string& source);

  int64_t users() const { return std::ssize(offsets_) - 1; }
  int64_t items() const { return item_count_; }
  std::span<const int32_t> of(int32_t user) const;
  /// Of all users, one behind the other, and where each begins; the last entry is where all end.
  const std::vector<int32_t>& all() const { return items_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t longest() const { return longest_; }

  bool has(int32_t user, int32_t item) const;
  /// How many items a user has not.
  int64_t others(int32_t user) const { return item_count_ - std::ssize(of(user)); }
  /// Item number `place` in [0, others(user)) of those that a user has not, ascending.
  int32_t other(int32_t user, int64_t place) const;

 private:
  void check(const std::string& source) const;

  std::vector<int32_t> items_;
  std::vector<int64_t> offsets_;
  int64_t item_count_;
  int64_t longest_ = 0;
};

}  // namespace tessera::data
