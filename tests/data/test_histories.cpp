#include "data/ratings/histories.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "data/ratings/rating_data.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using data::Histories;
using data::Ratings;

namespace {

using Items = std::vector<int32_t>;

Ratings ratings_of(const std::vector<std::pair<int32_t, int32_t>>& pairs) {
  Ratings ratings;
  for (const auto& [user, item] : pairs) {
    ratings.users.push_back(user);
    ratings.items.push_back(item);
    ratings.values.push_back(1);
  }
  return ratings;
}

Items list_of(std::span<const int32_t> items) { return {items.begin(), items.end()}; }

// Compares histories with a loop over all pairs of user and item. A user's own items and all other
// items must both be complete and ascending.
void check_against_loop(const Histories& histories, const Ratings& ratings) {
  std::vector<std::set<int32_t>> expected(static_cast<size_t>(histories.users()));
  for (size_t i = 0; i < ratings.users.size(); ++i) {
    expected[static_cast<size_t>(ratings.users[i])].insert(ratings.items[i]);
  }
  int64_t longest = 0;
  for (int32_t user = 0; user < histories.users(); ++user) {
    const std::set<int32_t>& own = expected[static_cast<size_t>(user)];
    longest = std::max(longest, std::ssize(own));
    REQUIRE(list_of(histories.of(user)) == Items(own.begin(), own.end()));
    REQUIRE(histories.others(user) == histories.items() - std::ssize(own));
    int64_t place = 0;
    for (int32_t item = 0; item < histories.items(); ++item) {
      REQUIRE(histories.has(user, item) == own.contains(item));
      if (!own.contains(item)) REQUIRE(histories.other(user, place++) == item);
    }
    REQUIRE(place == histories.others(user));
    REQUIRE_THROWS_WITH(histories.other(user, place), ContainsSubstring("histories: other item"));
    REQUIRE_THROWS_AS(histories.other(user, -1), Error);
  }
  REQUIRE(histories.longest() == longest);
}

std::string refusal(Items items, std::vector<int64_t> offsets, int64_t item_count) {
  return test::message_of<InputError>(
      [&] { const Histories unused(std::move(items), std::move(offsets), item_count, "a file"); });
}

}  // namespace

TEST_CASE("histories list each user's items in ascending order, and count the others") {
  const Ratings ratings = ratings_of(
      {{3, 4}, {0, 2}, {3, 0}, {1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}, {3, 5}, {5, 3}});
  const Histories histories(ratings, 7, 6);
  REQUIRE(histories.users() == 7);
  REQUIRE(histories.items() == 6);
  REQUIRE(histories.all() == Items{2, 0, 1, 2, 3, 4, 5, 0, 4, 5, 3});
  REQUIRE(histories.offsets() == std::vector<int64_t>{0, 1, 7, 7, 10, 10, 11, 11});
  REQUIRE(histories.others(1) == 0);  // user 1 has all items
  REQUIRE(histories.others(2) == 6);  // user 2 has no item
  REQUIRE(histories.other(3, 0) == 1);
  REQUIRE(histories.other(3, 2) == 3);
  check_against_loop(histories, ratings);
}

TEST_CASE("histories of drawn ratings equal those of a plain loop") {
  const uint64_t seed = GENERATE(0, 1, 2);
  const data::DrawnRatingOptions drawn{
      .users = 40, .items = 61, .ratings = 40 * 61 / 3, .rank = 1, .seed = seed};
  const Ratings ratings = data::PlantedRatings(drawn).draw();
  check_against_loop(Histories(ratings, 40, 61), ratings);
}

TEST_CASE("histories can be rebuilt from their lists") {
  const Ratings ratings = ratings_of({{2, 1}, {0, 3}, {0, 1}, {2, 0}});
  const Histories first(ratings, 4, 4);
  const Histories again(first.all(), first.offsets(), 4, "a file");
  check_against_loop(again, ratings);
  REQUIRE(again.all() == first.all());
  REQUIRE(again.longest() == 2);
  const Histories nobody(Items{}, {0}, 4, "a file");
  REQUIRE(nobody.users() == 0);
  REQUIRE(nobody.longest() == 0);
  const Histories nothing(ratings_of({}), 2, 3);
  check_against_loop(nothing, ratings_of({}));
}

TEST_CASE("invalid lists of histories are refused") {
  const std::string ends =
      "a file: the offsets of the histories do not ascend from 0 to their number of items";
  CHECK_THAT(refusal({}, {}, 3), ContainsSubstring(ends));
  CHECK_THAT(refusal({0}, {0}, 3), ContainsSubstring(ends));
  CHECK_THAT(refusal({0, 1}, {1, 2}, 3), ContainsSubstring(ends));
  CHECK_THAT(refusal({0, 1}, {0, 1}, 3), ContainsSubstring(ends));
  CHECK_THAT(refusal({0, 1}, {0, 3}, 3), ContainsSubstring(ends));
  CHECK_THAT(refusal({0, 1, 2}, {0, 2, 1, 3}, 3), ContainsSubstring(ends));
  CHECK_THAT(refusal({0, 1}, {0, -1, 2}, 3), ContainsSubstring(ends));
  CHECK(refusal({2, 1}, {0, 0, 2}, 3) ==
        "a file: user number 1 has item 1 after item 2, expected ascending items below 3, each "
        "once");
  CHECK_THAT(refusal({1, 1}, {0, 2}, 3), ContainsSubstring("item 1 after item 1"));
  CHECK_THAT(refusal({0, 3}, {0, 2}, 3), ContainsSubstring("item 3 after item 0"));
  CHECK_THAT(refusal({-1}, {0, 1}, 3), ContainsSubstring("item -1 after item -1"));
  // A user's list may begin with the item that ends the previous user's list.
  CHECK(refusal({0, 2, 2}, {0, 2, 3}, 3) == "nothing was thrown");
  CHECK_THAT(test::message_of<InputError>([] {
               const Histories unused(ratings_of({{0, 3}}), 1, 3);
             }),
             ContainsSubstring("ratings: user number 0 has item 3"));
  CHECK_THAT(test::message_of<InputError>([] {
               const Histories unused(ratings_of({{1, 2}, {1, 2}}), 2, 3);
             }),
             ContainsSubstring("user number 1 has item 2 after item 2"));
}
