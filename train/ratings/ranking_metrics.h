// Metrics of how well a recommender ranks held-out items, each between 0 and 1.
//
// A user has one or more held-out items. Each is ranked against candidates: all other items that
// the user does not have in training, or a sample of them. The place of a held-out item is the
// number of candidates that rank before it. ndcg follows Järvelin and Kekäläinen, "Cumulated
// gain-based evaluation of IR techniques", TOIS 2002, with a gain of 1 for each held-out item.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

struct RankingQuality {
  float hit_rate = 0;  // 1 if a held-out item is among the first k, else 0
  float ndcg = 0;      // discounted gain in the first k, divided by the best possible gain
  float recall = 0;    // fraction of the held-out items that are among the first k
  float mrr = 0;       // 1 / (1 + the best place of a held-out item), even beyond the first k
};

/// Returns the quality for one user whose held-out items have these places. Throws if `places` is
/// empty or k < 1.
RankingQuality ranking_quality(std::span<const int64_t> places, int64_t k);

/// Returns the place of each held-out item. The candidates for such an item are all other items
/// except those in `excluded`. Other held-out items are candidates, too. A candidate ranks before
/// the held-out item if the candidate's score is higher or NaN. Of two items with equal scores, the
/// item with the lower index ranks first. If the held-out item's own score is NaN, all candidates
/// rank before the item. `held_out` and `excluded` must not have an item in common. Reads all
/// scores once, however many items are held out.
std::vector<int64_t> places_in_catalogue(std::span<const float> scores,
                                         std::span<const int32_t> excluded,
                                         std::span<const int32_t> held_out);
/// Returns the place of `item` among `others`, by the rules of places_in_catalogue.
int64_t place_among(std::span<const float> scores, std::span<const int32_t> others, int32_t item);

}  // namespace tessera::train
