#include "data/ratings/drawn_ratings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "core/error.h"
#include "data/ratings/rating_data.h"
#include "data/ratings/rating_digest.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using data::DrawnRatingOptions;
using data::PlantedRatings;
using data::Ratings;

namespace {

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

std::vector<int64_t> counts_of(const std::vector<int32_t>& numbers, int64_t count) {
  std::vector<int64_t> counts(static_cast<size_t>(count));
  for (const int32_t number : numbers) ++counts[static_cast<size_t>(number)];
  return counts;
}

}  // namespace

TEST_CASE("as many ratings are drawn as asked for, each pair of user and item once") {
  const auto options =
      GENERATE(DrawnRatingOptions{}, DrawnRatingOptions{1, 2, 1, 1}, DrawnRatingOptions{7, 1, 3, 3},
               DrawnRatingOptions{3, 1000, 1500, 2}, DrawnRatingOptions{50, 40, 1000, 5, 0.0, 9},
               DrawnRatingOptions{500, 3, 100, 1});
  const Ratings ratings = PlantedRatings(options).draw();
  REQUIRE(ratings.size() == options.ratings);
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t i = 0; i < ratings.users.size(); ++i) {
    REQUIRE((ratings.users[i] >= 0 && ratings.users[i] < options.users));
    REQUIRE((ratings.items[i] >= 0 && ratings.items[i] < options.items));
    pairs.emplace(ratings.users[i], ratings.items[i]);
  }
  REQUIRE(std::ssize(pairs) == options.ratings);
  const auto of_users = counts_of(ratings.users, options.users);
  if (options.ratings >= options.users) REQUIRE(*std::ranges::min_element(of_users) >= 1);
  REQUIRE(*std::ranges::max_element(of_users) <= std::max<int64_t>(1, options.items * 3 / 4));
}

TEST_CASE("the noise of drawn ratings is the error of the best prediction") {
  const double noise = GENERATE(0.0, 0.25, 0.5);
  const PlantedRatings planted({.noise = noise, .seed = 3});
  const Ratings ratings = planted.draw();
  std::vector<double> errors;
  for (size_t i = 0; i < ratings.users.size(); ++i) {
    errors.push_back(ratings.values[i] - planted.expected(ratings.users[i], ratings.items[i]));
  }
  // The deviation is estimated from 60,000 values, so its standard error is 0.3 %. Four standard
  // errors are allowed.
  REQUIRE(deviation_of(errors) == Approx(noise).epsilon(0.012).margin(1e-6));
  REQUIRE(mean_of(errors) == Approx(0.0).margin(noise / 60 + 1e-6));
}

TEST_CASE("the planted ratings have the mean and the deviations that the header states") {
  const PlantedRatings planted(DrawnRatingOptions{.seed = 5});
  std::vector<double> all;
  for (int64_t user = 0; user < 1000; ++user) {
    for (int64_t item = 0; item < 600; ++item) all.push_back(planted.expected(user, item));
  }
  REQUIRE(mean_of(all) == Approx(3.5).margin(0.08));
  const double expected = std::sqrt(0.4 * 0.4 * 2 + 0.6 * 0.6);
  REQUIRE(deviation_of(all) == Approx(expected).epsilon(0.05));
}

TEST_CASE("some items are more popular and some users more active") {
  const Ratings ratings = PlantedRatings(DrawnRatingOptions{}).draw();
  for (auto counts : {counts_of(ratings.items, 600), counts_of(ratings.users, 1000)}) {
    std::ranges::sort(counts);
    const int64_t top = counts[counts.size() - counts.size() / 20];
    const int64_t median = counts[counts.size() / 2];
    REQUIRE(top > 3 * median);
  }
}

TEST_CASE("drawn ratings are the same on every machine, and others for another seed") {
  const auto digest = [](const DrawnRatingOptions& options) {
    return data::digest_of_ratings(data::open_rating_data({.split = "fold:1/5", .drawn = options}));
  };
  REQUIRE(digest({}) == 0x371018ebe1bfda87);
  REQUIRE(digest({.seed = 1}) != digest({}));
  const data::RatingData data = data::open_rating_data({});
  REQUIRE(data.format == "drawn");
  REQUIRE(data.user_ids[41] == "42");
  REQUIRE(data.description() ==
          "60,000 ratings of 600 items by 1,000 users: 48,000 to train on, 12,000 to validate");
}

TEST_CASE("invalid options of drawn ratings are refused") {
  const auto refusal = [](const DrawnRatingOptions& options) {
    return test::message_of<InputError>([&] { PlantedRatings{options}; });
  };
  CHECK(refusal({.users = 0}) == "number of users of drawn ratings is 0, expected 1 to 16777216");
  CHECK_THAT(refusal({.items = -1}), ContainsSubstring("number of items of drawn ratings is -1"));
  CHECK_THAT(refusal({.rank = 0}), ContainsSubstring("rank of drawn ratings is 0"));
  CHECK(refusal({.users = 10, .items = 11, .ratings = 56}) ==
        "number of drawn ratings is 56, expected 1 to 55");
  CHECK(refusal({.users = 1, .items = 1, .ratings = 1}) == "nothing was thrown");
  CHECK_THAT(refusal({.noise = -1.0}), ContainsSubstring("noise of drawn ratings is -1"));
  CHECK_THAT(refusal({.noise = std::numeric_limits<double>::quiet_NaN()}),
             ContainsSubstring("noise of drawn ratings is nan"));
}
