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
  float hit_rate = 0;  // one where a held-out item is among the first k
  float ndcg = 0;      // discounted gain of those among the first k, over the best possible one
  float recall = 0;    // fraction of the held-out items among the first k
  float mrr = 0;       // 1 / (1 + the best place), of any depth
};

/// Of one user, whose held-out items have these places; at least one.
RankingQuality ranking_quality(std::span<const int64_t> places, int64_t k);

/// The place of `item` among all items, of which those in `excluded` (ascending) are no candidates:
/// how many have a higher score, or an equal one and a lower number. Other items whose score is NaN
/// count as higher, and all of them do where the item's own is: what is no number is never right.
int64_t place_in_catalogue(std::span<const float> scores, std::span<const int32_t> excluded,
                           int32_t item);
/// The same among `item` and the given others.
int64_t place_among(std::span<const float> scores, std::span<const int32_t> others, int32_t item);

}  // namespace tessera::train
