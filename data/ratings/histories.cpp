#include "data/ratings/histories.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace tessera::data {

Histories::Histories(const Ratings& ratings, int64_t users, int64_t items)
    : items_(static_cast<size_t>(ratings.size())),
      offsets_(static_cast<size_t>(users) + 1, 0),
      item_count_(items) {
  for (const int32_t user : ratings.users) ++offsets_[static_cast<size_t>(user) + 1];
  for (size_t user = 1; user < offsets_.size(); ++user) offsets_[user] += offsets_[user - 1];
  std::vector<int64_t> next(offsets_.begin(), offsets_.end() - 1);
  for (size_t i = 0; i < ratings.users.size(); ++i) {
    items_[static_cast<size_t>(next[static_cast<size_t>(ratings.users[i])]++)] = ratings.items[i];
  }
  for (size_t user = 0; user + 1 < offsets_.size(); ++user) {
    std::sort(items_.begin() + offsets_[user], items_.begin() + offsets_[user + 1]);
    longest_ = std::max(longest_, offsets_[user + 1] - offsets_[user]);
  }
  check("ratings");
}

Histories::Histories(std::vector<int32_t> items, std::vector<int64_t> offsets, int64_t item_count,
                     const std::string& source)
    : items_(std::move(items)), offsets_(std::move(offsets)), item_count_(item_count) {
  const bool whole = !offsets_.empty() && offsets_.front() == 0 &&
                     offsets_.back() == std::ssize(items_) &&
                     std::is_sorted(offsets_.begin(), offsets_.end());
  if (!whole) {
    fail_input("{}: the offsets of the histories do not ascend from 0 to their number of items",
               source);
  }
  for (size_t user = 0; user + 1 < offsets_.size(); ++user) {
    longest_ = std::max(longest_, offsets_[user + 1] - offsets_[user]);
  }
  check(source);
}

void Histories::check(const std::string& source) const {
  for (int64_t user = 0; user < users(); ++user) {
    int32_t before = -1;
    for (const int32_t item : of(static_cast<int32_t>(user))) {
      if (item <= before || item >= item_count_) {
        fail_input(
            "{}: user number {} has item {} after item {}, expected ascending items below "
            "{}, each once",
            source, user, item, before, item_count_);
      }
      before = item;
    }
  }
}

std::span<const int32_t> Histories::of(int32_t user) const {
  const int64_t begin = offsets_[static_cast<size_t>(user)];
  const int64_t end = offsets_[static_cast<size_t>(user) + 1];
  return std::span(items_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

bool Histories::has(int32_t user, int32_t item) const {
  const std::span<const int32_t> own = of(user);
  return std::binary_search(own.begin(), own.end(), item);
}

int32_t Histories::other(int32_t user, int64_t place) const {
  TESSERA_CHECK(place >= 0 && place < others(user), "histories: other item {} of {} does not exist",
                place, others(user));
  // Exactly `place` items below the result are not the user's. Exactly own[i] - i items below
  // own[i] are not the user's. So if own[i] - i <= place, own[i] is below the result, otherwise
  // above. The search finds `low`, the number of the user's items below the result. In total,
  // place + low items are below the result, so the result is place + low.
  const std::span<const int32_t> own = of(user);
  int64_t low = 0;
  int64_t high = std::ssize(own);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (own[static_cast<size_t>(middle)] - middle <= place) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<int32_t>(place + low);
}

std::string name_of_user(std::span<const std::string> ids, int32_t user) {
  return ids.empty() ? fmt::format("user number {}", user)
                     : fmt::format("user '{}'", ids[static_cast<size_t>(user)]);
}

}  // namespace tessera::data
