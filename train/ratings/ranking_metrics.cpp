#include "train/ratings/ranking_metrics.h"

#include <algorithm>
#include <cmath>

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

int64_t place_in_catalogue(std::span<const float> scores, std::span<const int32_t> excluded,
                           int32_t item) {
  int64_t place = 0;
  for (int32_t other = 0; other < std::ssize(scores); ++other) {
    place += is_before(scores, other, item) ? 1 : 0;
  }
  for (const int32_t other : excluded) place -= is_before(scores, other, item) ? 1 : 0;
  return place;
}

int64_t place_among(std::span<const float> scores, std::span<const int32_t> others, int32_t item) {
  return std::count_if(others.begin(), others.end(),
                       [&](int32_t other) { return is_before(scores, other, item); });
}

}  // namespace tessera::train
