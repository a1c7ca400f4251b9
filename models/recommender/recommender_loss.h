// What a recommender is trained for.
//
//   rating  the squared error of ratings
//   bce     an observed item is one, drawn ones are zero: binary cross-entropy of logits
//   bpr     an observed item before each drawn one: -log sigmoid of the difference (Rendle et al.,
//           "BPR: Bayesian personalized ranking from implicit feedback", UAI 2009)
#pragma once

#include <cstdint>

#include "models/recommender/recommender.h"

namespace tessera::models {

enum class RecommenderObjective : uint8_t { rating, bce, bpr };

/// An f32 scalar []: the mean over B samples of K items. targets f32 (B, K): ratings, or one for
/// the observed item; bpr does not read them, and takes the first of each sample's K >= 2 items as
/// the observed one. Added to it is l2 / B times the sum of squares of all rows that were read, for
/// which the scores are `penalized` (recommender.h): a row's penalty grows with how often it is
/// read, as in Koren's papers.
Tensor recommender_loss(const Scores& scores, const Tensor& targets, RecommenderObjective objective,
                        float l2);

}  // namespace tessera::models
