#include "data/ratings/rating_split.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/context.h"
#include "core/error.h"
#include "core/random.h"
#include "data/ratings/rating_data.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using data::RatingData;
using data::Ratings;

namespace {

using Rating = std::tuple<int32_t, int32_t, float>;

std::vector<Rating> list_of(const Ratings& ratings) {
  std::vector<Rating> list;
  for (size_t i = 0; i < ratings.users.size(); ++i) {
    list.emplace_back(ratings.users[i], ratings.items[i], ratings.values[i]);
  }
  return list;
}

constexpr data::DrawnRatingOptions small{.users = 30, .items = 17, .ratings = 203, .rank = 2};

RatingData drawn(const std::string& split, uint64_t seed = 0) {
  return data::open_rating_data({.split = split, .seed = seed, .drawn = small});
}

RatingData read(const std::string& text, const std::string& split,
                const std::string& columns = "user,item,time") {
  const test::TemporaryFolder folder;
  return data::open_rating_data(
      {.path = folder.file("a", text), .columns = columns, .split = split});
}

std::vector<std::string> items_of(const RatingData& data, const Ratings& ratings) {
  std::vector<std::string> items;
  for (const int32_t item : ratings.items)
    items.push_back(data.item_ids[static_cast<size_t>(item)]);
  return items;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("every rating is in exactly one fold, and both parts keep their order") {
  const auto all = list_of(drawn("none").train);
  REQUIRE(all.size() == 203);
  const int folds = GENERATE(2, 3, 7, 203);
  const uint64_t seed = GENERATE(0, 1, 0xFFFFFFFFFFFFFFFF);
  std::map<Rating, int> times_held;
  for (int fold = 1; fold <= folds; ++fold) {
    const RatingData data = drawn(fmt::format("fold:{}/{}", fold, folds), seed);
    const auto train = list_of(data.train), validation = list_of(data.validation);
    REQUIRE(data.train.times.size() == train.size());
    const size_t size = validation.size();
    REQUIRE((size == 203u / static_cast<size_t>(folds) ||
             size == 203u / static_cast<size_t>(folds) + 1));
    for (const Rating& rating : validation) ++times_held[rating];
    // A rating's place tells which part contains the rating. Reading each rating from its part must
    // give all ratings in their original order.
    size_t i = 0, j = 0;
    for (size_t at = 0; at < all.size(); ++at) {
      const uint64_t place = data::place_of_rating(at, all.size(), seed);
      const bool held = place % static_cast<uint64_t>(folds) == static_cast<uint64_t>(fold - 1);
      REQUIRE((held ? validation[j++] : train[i++]) == all[at]);
    }
    REQUIRE(i + j == all.size());
  }
  REQUIRE(times_held.size() == all.size());
  for (const auto& [rating, times] : times_held) REQUIRE(times == 1);
}

TEST_CASE("folds depend on the seed and not on threads, and are the same on every machine") {
  const auto held = [](uint64_t seed) { return list_of(drawn("fold:1/5", seed).validation); };
  REQUIRE(held(1) != held(2));
  const auto expected = held(1);
  {
    const ThreadCountScope threads(3);
    REQUIRE(held(1) == expected);
  }
  std::vector<uint64_t> places;
  for (uint64_t i = 0; i < 8; ++i) places.push_back(data::place_of_rating(i, 100, 7));
  REQUIRE(places == std::vector<uint64_t>{10, 97, 40, 95, 85, 98, 43, 81});
}

TEST_CASE("the split last holds out each user's latest rating") {
  const RatingData data = read("1,a,5\n1,b,9\n1,c,7\n2,d,1\n3,e,4\n3,f,4\n3,g,2\n", "last");
  REQUIRE(items_of(data, data.train) == Strings{"a", "c", "d", "e", "g"});
  REQUIRE(items_of(data, data.validation) == Strings{"b", "f"});  // e and f have equal times
  const RatingData without = read("1,a\n2,d\n1,b\n3,e\n1,c\n3,f\n", "last", "user,item");
  REQUIRE(items_of(without, without.validation) == Strings{"c", "f"});
  const RatingData many = drawn("last");
  std::set<int32_t> users(many.train.users.begin(), many.train.users.end());
  REQUIRE(users.size() == 30);
  REQUIRE(many.validation.size() <= 30);
}

TEST_CASE("whole times are compared exactly, also where a double is too coarse") {
  // Nanoseconds since 1970. A double rounds the times of a and b to the same value.
  const std::string text = "1,a,1700000000000000001\n1,b,1700000000000000000\n2,c,1.5\n2,d,+3\n";
  const RatingData last = read(text, "last");
  REQUIRE(items_of(last, last.validation) == Strings{"a", "d"});
  REQUIRE(last.train.time_rests.size() == 2);
  const RatingData latest = read(text, "time:0.25");
  REQUIRE(items_of(latest, latest.validation) == Strings{"a"});
  const RatingData twice = read("1,a,9007199254740993\n1,a,9007199254740992\n2,b,1\n", "none");
  REQUIRE(twice.dropped == 1);
  REQUIRE(twice.train.time_rests == std::vector<int16_t>{1, 0});
  const RatingData limits =
      read("1,a,9223372036854775807\n1,b,9223372036854775806\n1,c,-9223372036854775808\n", "last");
  REQUIRE(items_of(limits, limits.validation) == Strings{"a"});
  REQUIRE(read("1,a,5\n1,b,4\n", "last").train.time_rests.empty());
}

TEST_CASE("the split time holds out the latest fraction of all ratings") {
  const std::string text = "1,a,5\n1,b,9\n1,c,7\n2,d,1\n3,e,7\n3,f,7\n3,g,2\n";
  const RatingData data = read(text, "time:0.43");  // 3.01 of 7 ratings
  REQUIRE(items_of(data, data.validation) == Strings{"b", "e", "f"});
  REQUIRE(items_of(data, data.train) == Strings{"a", "c", "d", "g"});
  REQUIRE(read(text, "time:0.29").validation.size() == 2);
  const RatingData many = drawn("time:0.25");
  REQUIRE(many.validation.size() == 50);
  REQUIRE(*std::ranges::max_element(many.train.times) <=
          *std::ranges::min_element(many.validation.times));
}

TEST_CASE("invalid splits, and splits that leave a part empty, are refused") {
  for (const char* text : {"",         "fold",      "fold:",     "fold:1",
                           "fold:1/",  "fold:/5",   "fold:0/5",  "fold:6/5",
                           "fold:1/1", "fold:-1/5", "fold:1/5x", "fold:1/99999999999999999999",
                           " last",    "time",      "time:",     "time:0",
                           "time:1",   "time:nan",  "time:-0.5", "time:0.5x",
                           "NONE"}) {
    CHECK_THAT(test::message_of<InputError>([&] { drawn(text); }),
               ContainsSubstring("expected fold:k/K with 1 <= k <= K and K >= 2, last, time:F"));
  }
  const auto refusal = [](const std::string& text, const std::string& split,
                          const std::string& columns = "user,item,time") {
    return test::message_of<InputError>([&] { read(text, split, columns); });
  };
  CHECK_THAT(refusal("1,a,1\n2,b,2\n", "last"),
             EndsWith("a: the split last leaves 2 of 2 ratings to train on and 0 to validate, "
                      "expected some of each"));
  CHECK_THAT(refusal("1,a,1\n2,b,2\n", "time:0.4"), ContainsSubstring("leaves 2 of 2 ratings"));
  CHECK_THAT(refusal("1,a\n2,b\n", "time:0.5", "user,item"),
             EndsWith("a: the split time:0.5 needs times, and these ratings have none"));
  // Two ratings can be split into two folds. If the only rating is held out, none is left to train
  // on.
  REQUIRE(read("1,a,1\n1,b,2\n", "fold:1/2").validation.size() == 1);
  CHECK_THAT(refusal("1,a,1\n", "fold:1/2"), ContainsSubstring("leaves 0 of 1 ratings"));
  REQUIRE(read("1,a,1\n", "none").train.size() == 1);
}

TEST_CASE("one user or one item is enough if a split leaves neither part empty") {
  REQUIRE(read("1,a,1\n1,b,2\n1,c,3\n", "last").validation.size() == 1);
  REQUIRE(read("1,a,1\n2,a,2\n3,a,3\n", "time:0.5").validation.size() == 1);
}
