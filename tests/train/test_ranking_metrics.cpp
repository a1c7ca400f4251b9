#include "train/ratings/ranking_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "tests/support/catch.h"

namespace tessera::train {
namespace {

using Catch::Approx;
using Items = std::vector<int32_t>;
using Places = std::vector<int64_t>;

TEST_CASE("the quality for one held-out item depends on its place") {
  const auto first = ranking_quality(Places{0}, 10);
  CHECK(first.hit_rate == 1);
  CHECK(first.ndcg == 1);
  CHECK(first.recall == 1);
  CHECK(first.mrr == 1);
  const auto third = ranking_quality(Places{2}, 3);
  CHECK(third.hit_rate == 1);
  CHECK(third.ndcg == 0.5f);  // 1 / log2(4)
  CHECK(third.recall == 1);
  CHECK(third.mrr == Approx(1.0 / 3));
  const auto missed = ranking_quality(Places{3}, 3);
  CHECK(missed.hit_rate == 0);
  CHECK(missed.ndcg == 0);
  CHECK(missed.recall == 0);
  CHECK(missed.mrr == 0.25f);  // mrr uses places beyond k, too
}

TEST_CASE("the quality for several held-out items is relative to their best order") {
  // Two of three held-out items are in the first ten, at places 1 and 4 (counted from 0). Their DCG
  // is 1/log2(3) + 1/log2(6); the best possible DCG is 1 + 1/log2(3) + 1/log2(4).
  const auto some = ranking_quality(Places{12, 4, 1}, 10);
  CHECK(some.hit_rate == 1);
  CHECK(some.ndcg == Approx((0.63092975 + 0.38685281) / (1 + 0.63092975 + 0.5)));
  CHECK(some.recall == Approx(2.0 / 3));
  CHECK(some.mrr == 0.5f);
  const auto best = ranking_quality(Places{1, 2, 0}, 10);
  CHECK(best.ndcg == 1);
  CHECK(best.recall == 1);
  // If more than k items are held out, at most k can be found.
  const auto cut = ranking_quality(Places{0, 1, 2, 3}, 2);
  CHECK(cut.ndcg == 1);
  CHECK(cut.recall == 0.5f);
  CHECK_THROWS_AS(ranking_quality(Places{}, 10), Error);
  CHECK_THROWS_AS(ranking_quality(Places{1}, 0), Error);
}

TEST_CASE("items with equal scores are in the order of their numbers") {
  const std::vector<float> scores = {2, 3, 2, 3, 2, -INFINITY};
  const auto place = [&](int32_t item, const Items& excluded = {}) {
    return places_in_catalogue(scores, excluded, Items{item}).at(0);
  };
  CHECK(place(1) == 0);
  CHECK(place(3) == 1);
  CHECK(place(0) == 2);
  CHECK(place(2) == 3);
  CHECK(place(4) == 4);
  CHECK(place(5) == 5);
  CHECK(place(4, {1, 2, 5}) == 2);
  CHECK(place(1, {0, 2, 3, 4, 5}) == 0);
  const std::vector<int32_t> others = {5, 4, 1};
  CHECK(place_among(scores, others, 2) == 1);
  CHECK(place_among(scores, others, 3) == 1);
  CHECK(place_among(scores, {}, 0) == 0);
}

TEST_CASE("a score of NaN ranks before the wanted items, and a wanted item with NaN ranks last") {
  const std::vector<float> scores = {1, NAN, 5, NAN, INFINITY};
  CHECK(places_in_catalogue(scores, {}, Items{4, 2, 1, 3}) == Places{2, 3, 4, 4});
  CHECK(places_in_catalogue(scores, Items{1, 4}, Items{3, 2}) == Places{2, 1});
  CHECK(place_among(scores, std::vector<int32_t>{0, 1}, 2) == 1);
  CHECK(place_among(scores, std::vector<int32_t>{0, 2, 4}, 3) == 3);
}

TEST_CASE("places in a catalogue are those of a stable sort") {
  const uint64_t seed = GENERATE(1, 2, 3);
  RandomStream random(seed, "scores of the test", 0);
  std::vector<float> scores(97);
  for (float& score : scores) score = static_cast<float>(random.below(40));  // many are equal
  Items excluded;
  Items candidates;
  for (int32_t item = 0; item < 97; ++item) {
    (random.below(3) == 0 ? excluded : candidates).push_back(item);
  }
  Items order = candidates;
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](int32_t item) { return scores[static_cast<size_t>(item)]; });
  const Places places = places_in_catalogue(scores, excluded, order);
  for (int64_t place = 0; place < std::ssize(order); ++place) {
    const int32_t item = order[static_cast<size_t>(place)];
    REQUIRE(places[static_cast<size_t>(place)] == place);
    REQUIRE(places_in_catalogue(scores, excluded, Items{item}) == Places{place});
    REQUIRE(place_among(scores, candidates, item) == place);
  }
}

TEST_CASE("places of several held-out items are those of plain counts, also with NaN") {
  const uint64_t seed = GENERATE(1, 2, 3);
  RandomStream random(seed, "scores of the test", 1);
  std::vector<float> scores(97);
  for (float& score : scores) {
    score = random.below(9) == 0 ? NAN : static_cast<float>(random.below(20));
  }
  Items excluded;
  Items candidates;
  Items held_out;
  for (int32_t item = 0; item < 97; ++item) {
    (random.below(3) == 0 ? excluded : candidates).push_back(item);
    if (candidates.size() % 3 == 1 && candidates.back() == item) held_out.push_back(item);
  }
  REQUIRE(std::ranges::any_of(
      held_out, [&](int32_t item) { return std::isnan(scores[static_cast<size_t>(item)]); }));
  Places expected;
  for (const int32_t item : held_out) expected.push_back(place_among(scores, candidates, item));
  CHECK(places_in_catalogue(scores, excluded, held_out) == expected);
}

}  // namespace
}  // namespace tessera::train
