#include "data/ratings/drawn_ratings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/random.h"

namespace tessera::data {
namespace {

__extension__ using uint128 = unsigned __int128;

constexpr int64_t most_users_or_items = int64_t{1} << 24;
constexpr int64_t most_rank = 1024;
constexpr double most_noise = 1000.0;

constexpr int fraction_bits = 16;
constexpr double one = 1 << fraction_bits;
constexpr auto mean = static_cast<int64_t>(3.5 * one);
constexpr auto bias_deviation = static_cast<int64_t>(0.4 * one);
constexpr double product_deviation = 0.6;

constexpr double first_time = 1e9;
constexpr uint64_t seconds_of_a_year = 365 * 24 * 3600;

// Draws an approximately normal value of deviation 1, in units of 2^-16. The sum of twelve uniform
// numbers in [0, 1) has the mean 6 and the variance 1. Rounding down to 16 bits makes each of the
// twelve half a unit too small on average, so six units are added.
int64_t normal(RandomStream& stream) {
  int64_t sum = 6 - 6 * (int64_t{1} << fraction_bits);
  for (int i = 0; i < 6; ++i) {
    const uint32_t bits = stream.next_u32();
    sum += (bits & 0xFFFF) + (bits >> 16);
  }
  return sum;
}

int64_t normal(RandomStream& stream, int64_t deviation) {
  return deviation * normal(stream) >> fraction_bits;
}

// The users and the items are each put in a random order (drawn_ratings.h). The user or item at
// place r = 0, 1, ... of the order has the share 1 / (r + 1 + count / 20). Entry r of the result is
// the sum of the shares of all places before r; the last entry is the total. The unit is 2^-36, so
// that shares stay large integers even for many places.
std::vector<uint64_t> sums_of_shares(int64_t count) {
  std::vector<uint64_t> sums(static_cast<size_t>(count) + 1);
  for (int64_t place = 0; place < count; ++place) {
    const auto share = (uint64_t{1} << 36) / static_cast<uint64_t>(place + 1 + count / 20);
    sums[static_cast<size_t>(place) + 1] = sums[static_cast<size_t>(place)] + share;
  }
  return sums;
}

void check(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  fail_input("{} of drawn ratings is {}, expected 1 to {}", name, value, most);
}

}  // namespace

PlantedRatings::PlantedRatings(const DrawnRatingOptions& options) : options_(options) {
  check("number of users", options.users, most_users_or_items);
  check("number of items", options.items, most_users_or_items);
  check("rank", options.rank, most_rank);
  // draw() repeats a draw if the user has already rated the drawn item. If more than half of all
  // (user, item) pairs had ratings, draw() would repeat too many draws. The number of ratings must
  // also be at most UINT32_MAX, because rating_split.cpp uses 32-bit indices.
  check("number", options.ratings,
        std::clamp<int64_t>(options.users * options.items / 2, 1, UINT32_MAX));
  if (!(options.noise >= 0.0 && options.noise <= most_noise)) {
    fail_input("noise of drawn ratings is {}, expected 0 to {}", options.noise, most_noise);
  }
  users_ = plant("drawn users", options.users);
  items_ = plant("drawn items", options.items);
}

PlantedRatings::Planted PlantedRatings::plant(const char* purpose, int64_t count) const {
  // The inner product of two factors is a sum of `rank` products, each of variance deviation^4.
  // This sum must have the variance product_deviation^2, so deviation^2 is product_deviation /
  // sqrt(rank). All operations used here, square roots included, are correctly rounded in IEEE
  // arithmetic. So every machine gets the same deviation.
  const double variance = product_deviation / std::sqrt(static_cast<double>(options_.rank));
  const auto deviation = static_cast<int64_t>(std::floor(std::sqrt(variance) * one + 0.5));
  Planted planted;
  planted.biases.reserve(static_cast<size_t>(count));
  planted.factors.reserve(static_cast<size_t>(count * options_.rank));
  for (int64_t i = 0; i < count; ++i) {
    RandomStream stream(options_.seed, purpose, static_cast<uint64_t>(i));
    planted.biases.push_back(normal(stream, bias_deviation));
    for (int64_t j = 0; j < options_.rank; ++j) {
      planted.factors.push_back(normal(stream, deviation));
    }
  }
  return planted;
}

int64_t PlantedRatings::fixed_expected(int64_t user, int64_t item) const {
  const int64_t biases =
      users_.biases[static_cast<size_t>(user)] + items_.biases[static_cast<size_t>(item)];
  int64_t sum = (mean + biases) << fraction_bits;
  const int64_t* const p = users_.factors.data() + user * options_.rank;
  const int64_t* const q = items_.factors.data() + item * options_.rank;
  for (int64_t j = 0; j < options_.rank; ++j) sum += p[j] * q[j];
  return sum;
}

double PlantedRatings::expected(int64_t user, int64_t item) const {
  TESSERA_CHECK(user >= 0 && user < options_.users && item >= 0 && item < options_.items,
                "drawn ratings: there is no user {} of {} or no item {} of {}", user,
                options_.users, item, options_.items);
  return static_cast<double>(fixed_expected(user, item)) / (one * one);
}

std::vector<int64_t> PlantedRatings::counts_of_users() const {
  const std::vector<uint64_t> sums = sums_of_shares(options_.users);
  const int64_t least = options_.ratings >= options_.users ? 1 : 0;
  const int64_t most = std::max<int64_t>(1, options_.items * 3 / 4);
  const auto shared = static_cast<uint64_t>(options_.ratings - least * options_.users);
  const auto before = [&](uint64_t place) {
    return static_cast<int64_t>(uint128{sums[place]} * shared / sums.back());
  };
  std::vector<int64_t> counts(static_cast<size_t>(options_.users));
  int64_t excess = 0;
  for (uint64_t user = 0; user < counts.size(); ++user) {
    const uint64_t place = permuted(user, counts.size(), options_.seed, "activity of users", 0);
    const int64_t count = least + before(place + 1) - before(place);
    counts[user] = std::min(count, most);
    excess += count - counts[user];
  }
  for (int64_t& count : counts) {
    const int64_t more = std::min(excess, most - count);
    count += more;
    excess -= more;
  }
  return counts;
}

Ratings PlantedRatings::draw() const {
  const std::vector<uint64_t> sums = sums_of_shares(options_.items);
  const auto items = static_cast<uint64_t>(options_.items);
  const auto noise = static_cast<int64_t>(std::floor(options_.noise * one + 0.5));
  const std::vector<int64_t> counts = counts_of_users();
  std::vector<int64_t> rated_by(static_cast<size_t>(items), -1);  // the last user to draw each item
  Ratings ratings;
  for (int64_t user = 0; user < options_.users; ++user) {
    RandomStream choice(options_.seed, "items of a drawn user", static_cast<uint64_t>(user));
    for (int64_t left = counts[static_cast<size_t>(user)]; left > 0;) {
      const auto found = std::upper_bound(sums.begin(), sums.end(), choice.below(sums.back()));
      const auto place = static_cast<uint64_t>(found - sums.begin() - 1);
      const uint64_t item = permuted(place, items, options_.seed, "popularity of items", 0);
      if (std::exchange(rated_by[item], user) == user) continue;
      --left;
      RandomStream pair(options_.seed, "drawn rating", static_cast<uint64_t>(user) * items + item);
      const int64_t fixed = fixed_expected(user, static_cast<int64_t>(item)) + noise * normal(pair);
      ratings.users.push_back(static_cast<int32_t>(user));
      ratings.items.push_back(static_cast<int32_t>(item));
      ratings.values.push_back(static_cast<float>(static_cast<double>(fixed) / (one * one)));
      ratings.times.push_back(first_time + static_cast<double>(pair.below(seconds_of_a_year)));
    }
  }
  return ratings;
}

}  // namespace tessera::data
