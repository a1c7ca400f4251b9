// Computes a recommender's scores for given users and items, without gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/ratings/rating_batches.h"
#include "models/recommender/recommender.h"
#include "train/ratings/rating_evaluation.h"

namespace tessera::train {

/// Makes a model's input from a batch. `penalized` is passed on to RecommenderInput.
models::RecommenderInput recommender_input(const data::RatingBatch& batch, bool penalized = false);

/// Computes scores on the default device, in batches of one size.
class Scorer {
 public:
  /// Model and histories must outlive this object. If sizes.shared_items is true, only catalogue()
  /// may be called, else only pairs().
  Scorer(models::Recommender& model, const data::Histories& histories,
         const RatingEvaluationSizes& sizes);

  /// Returns the score of each pair (users[i], items[i]). Both lists must have sizes.samples
  /// elements. The result is valid until the next call.
  std::span<const float> pairs(std::span<const int32_t> users, std::span<const int32_t> items);
  /// Returns the scores of all items for each user: (users, items). `users` must have sizes.samples
  /// elements. The result is valid until the next call.
  std::span<const float> catalogue(std::span<const int32_t> users);

 private:
  void load_users(std::span<const int32_t> users);
  Tensor compute(const Tensor& items);

  models::Recommender& model_;
  const data::Histories& histories_;
  RatingEvaluationSizes sizes_;
  data::RatingBatch host_;
  data::RatingBatch input_;  // on the default device; on the CPU these are the tensors of host_
  Tensor host_items_;        // i32 (1, sizes.items): the item numbers in one part of the catalogue
  Tensor items_;
  std::vector<float> scores_;
};

}  // namespace tessera::train
