#include "train/ratings/ranking_metrics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/error.h"

namespace tessera::train {
namespace {

bool is_before(std::span<const float> scores, int32_t other, int32_t item) {
  const float a = scores[static_cast<size_t>(other)];
  const float b = scores[static_cast<size_t>(item)];
  return other != item && (!(a <= b) || (a == b && other < item));
}

double gain(int64_t place) { return 1 / std::log2(static_cast<double>(place) + 2); }

}  // namespace

RankingQuality ranking_quality(std::span<const int64_t> places, int64_t k) {
  TESSERA_CHECK(!places.empty() && k >= 1,
                "ranking_quality: {} places and k = {}, expected at least 1 of each", places.size(),
                k);
  double gains = 0;
  double best_gains = 0;
  int64_t found = 0;
  const int64_t held_out = std::ssize(places);
  for (const int64_t place : places) {
    if (place >= k) continue;
    gains += gain(place);
    ++found;
  }
  for (int64_t place = 0; place < std::min(held_out, k); ++place) best_gains += gain(place);
  const int64_t first = *std::min_element(places.begin(), places.end());
  return {.hit_rate = found > 0 ? 1.0f : 0.0f,
          .ndcg = static_cast<float>(gains / best_gains),
          .recall = static_cast<float>(static_cast<double>(found) / static_cast<double>(held_out)),
          .mrr = static_cast<float>(1 / static_cast<double>(first + 1))};
}

std::vector<int64_t> places_in_catalogue(std::span<const float> scores,
                                         std::span<const int32_t> excluded,
                                         std::span<const int32_t> held_out) {
  const auto before = [&](int32_t a, int32_t b) { return is_before(scores, a, b); };
  const auto has_number = [&](int32_t item) {
    return !std::isnan(scores[static_cast<size_t>(item)]);
  };
  std::vector<int32_t> ranked;  // the held-out items whose score is a number, best first
  std::ranges::copy_if(held_out, std::back_inserter(ranked), has_number);
  std::ranges::sort(ranked, before);
  // An item that ranks before ranked[i] also ranks before all later entries of `ranked`. So it is
  // counted only at the first entry before which it ranks. The prefix sums of the counts are the
  // places.
  std::vector<int64_t> places(ranked.size(), 0);
  const auto count = [&](int32_t other, int64_t change) {
    // Most items rank behind all held-out items, and need no search.
    if (ranked.empty() || !before(other, ranked.back())) return;
    const auto first = std::upper_bound(ranked.begin(), ranked.end(), other, before);
    places[static_cast<size_t>(first - ranked.begin())] += change;
  };
  for (int32_t other = 0; other < std::ssize(scores); ++other) count(other, 1);
  for (const int32_t other : excluded) count(other, -1);
  std::partial_sum(places.begin(), places.end(), places.begin());
  std::vector<int64_t> result;
  for (const int32_t item : held_out) {
    const auto found = std::ranges::lower_bound(ranked, item, before);
    result.push_back(has_number(item) ? places[static_cast<size_t>(found - ranked.begin())]
                                      : std::ssize(scores) - std::ssize(excluded) - 1);
  }
  return result;
}

int64_t place_among(std::span<const float> scores, std::span<const int32_t> others, int32_t item) {
  return std::count_if(others.begin(), others.end(),
                       [&](int32_t other) { return is_before(scores, other, item); });
}

}  // namespace tessera::train
