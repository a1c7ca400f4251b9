// The losses for training recommenders.
//
//   rating  the squared error of ratings
//   bce     binary cross-entropy of logits: targets are 1 for observed items, 0 for items that were
//           drawn at random
//   bpr     -log sigmoid(score of the observed item - score of a drawn item) (Rendle et al., "BPR:
//           Bayesian personalized ranking from implicit feedback", UAI 2009)
#pragma once

#include <cstdint>

#include "models/recommender/recommender.h"

namespace tessera::models {

enum class RecommenderObjective : uint8_t { rating, bce, bpr };

/// Returns the loss, an f32 scalar []: the mean over B samples of K items. The targets, f32 (B, K),
/// are ratings, or 1 for an observed item and 0 for a drawn item. bpr does not read the targets:
/// the first of a sample's K >= 2 items is the observed item, and the mean is over the K - 1 drawn
/// items.
///
/// The loss includes l2 / B times the sum of squares of all table rows that were read. A row that
/// is read twice counts twice, as in Koren's papers. In svd++, a user's factors and scaled history
/// factors are not squared row by row: their sum counts as one row. Throws if the targets, where
/// they are read, do not have the scores' shape, and if l2 is not 0 and the scores are not
/// `penalized` (recommender.h).
Tensor recommender_loss(const Scores& scores, const Tensor& targets, RecommenderObjective objective,
                        float l2);

}  // namespace tessera::models
