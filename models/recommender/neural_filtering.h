// The models gmf and neumf of neural collaborative filtering, in which layers compute scores from
// factors.
#pragma once

#include <memory>
#include <vector>

#include "models/recommender/recommender.h"

namespace tessera::models {

/// The score of gmf for user u and item i is h . (p_u * q_i) + bias, where * is elementwise. p_u
/// and q_i are the factors of the user and the item, and h has one weight for each factor.
class GeneralizedFactorization : public Recommender {
 public:
  explicit GeneralizedFactorization(const RecommenderConfig& config);
  Scores score(const RecommenderInput& input) override;

 private:
  RecommenderTable user_factors_;
  RecommenderTable item_factors_;
  nn::Linear output_;
};

/// The score of neumf is a linear layer's output. The layer's input concatenates gmf's product
/// p_u * q_i and the output of an MLP. The MLP's input concatenates a second set of user and item
/// factors. The MLP's first layer is split into a user half and an item half, so that a user's half
/// is computed only once for all of the user's items.
class NeuralFactorization : public Recommender {
 public:
  explicit NeuralFactorization(const RecommenderConfig& config);
  Scores score(const RecommenderInput& input) override;

 private:
  RecommenderTable user_factors_;
  RecommenderTable item_factors_;
  RecommenderTable mlp_user_factors_;
  RecommenderTable mlp_item_factors_;
  nn::Linear user_half_;
  nn::Linear item_half_;
  std::vector<std::unique_ptr<nn::Linear>> layers_;  // the MLP's layers after the first
  nn::Linear output_;
};

}  // namespace tessera::models
