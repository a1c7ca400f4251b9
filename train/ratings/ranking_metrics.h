// How well held-out items are ranked among others, in numbers between 0 and 1.
//
// A user has one or more held-out items, each at a place: how many candidates come before it.
// (Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", TOIS 2002, for ndcg
// with gains of one.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

struct RankingQuality {
  float hit_rate = 0;  // 1 if a held-out item is among the first k
  float ndcg = 0;      // discounted gain of those among the first k, over the best possible one
  float recall = 0;    // fraction of the held-out items among the first k
  float mrr = 0;       // 1 / (1 + the best place), of any depth
};

/// The quality for one user, whose held-out items (at least one) have these places.
RankingQuality ranking_quality(std::span<const int64_t> places, int64_t k);

/// The place of `item` among all items except those in `excluded` (ascending): the number of
/// candidates with a higher score, or with an equal score and a lower number. Candidates whose
/// score is NaN count as higher, and all candidates do if the item's own score is NaN, so NaN never
/// ranks well.
int64_t place_in_catalogue(std::span<const float> scores, std::span<const int32_t> excluded,
                           int32_t item);
/// As place_in_catalogue, among `item` and `others` only.
int64_t place_among(std::span<const float> scores, std::span<const int32_t> others, int32_t item);

}  // namespace tessera::train
