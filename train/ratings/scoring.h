// Scores of a recommender for users and items that are named by number, outside of training.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/ratings/rating_batches.h"
#include "models/recommender/recommender.h"
#include "train/ratings/rating_evaluation.h"

namespace tessera::train {

/// `penalized`: as in RecommenderInput.
models::RecommenderInput recommender_input(const data::RatingBatch& batch, bool penalized = false);

/// Computes scores on the default device, in batches of one size.
class Scorer {
 public:
  /// Model and histories must outlive it. Without shared items a batch is (user, item) pairs.
  Scorer(models::Recommender& model, const data::Histories& histories,
         const RatingEvaluationSizes& sizes);

  /// Scores of as many pairs as a batch has samples. Valid until the next call.
  std::span<const float> pairs(std::span<const int32_t> users, std::span<const int32_t> items);
  /// Scores of all items for as many users as a batch has: (B, I). Valid until the next call.
  std::span<const float> catalogue(std::span<const int32_t> users);

 private:
  void load_users(std::span<const int32_t> users);
  Tensor compute(const Tensor& items);

  models::Recommender& model_;
  const data::Histories& histories_;
  RatingEvaluationSizes sizes_;
  data::RatingBatch host_;
  data::RatingBatch input_;  // on the CPU the same as host_
  Tensor host_items_;        // i32 (1, items) of the catalogue
  Tensor items_;
  std::vector<float> scores_;
};

}  // namespace tessera::train
