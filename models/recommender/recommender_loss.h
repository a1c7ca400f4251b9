// The losses that recommenders are trained with.
//
//   rating  the squared error of ratings
//   bce     binary cross-entropy of logits: targets are one for observed items, zero for drawn ones
//   bpr     prefers the observed item to each drawn one: -log sigmoid of the difference (Rendle et
//           al., "BPR: Bayesian personalized ranking from implicit feedback", UAI 2009)
#pragma once

#include <cstdint>

#include "models/recommender/recommender.h"

namespace tessera::models {

enum class RecommenderObjective : uint8_t { rating, bce, bpr };

/// Returns the loss, an f32 scalar []: the mean over B samples of K items. targets f32 (B, K) are
/// ratings, or one for an observed item and zero for a drawn one. bpr does not read them, and takes
/// the first of each sample's K >= 2 items as the observed one. The loss includes l2 / B times the
/// sum of squares of all table rows that were read; if l2 > 0, throws unless the scores are
/// `penalized` (recommender.h). A row's penalty grows with how often it is read, as in Koren's
/// papers.
Tensor recommender_loss(const Scores& scores, const Tensor& targets, RecommenderObjective objective,
                        float l2);

}  // namespace tessera::models
