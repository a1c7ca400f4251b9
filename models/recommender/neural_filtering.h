// Scores by layers on top of factors: gmf and neumf, of neural collaborative filtering.
#pragma once

#include <memory>
#include <vector>

#include "models/recommender/recommender.h"

namespace tessera::models {

/// h . (p_u * q_i), element by element, and a bias: a product whose factors have weights.
class GeneralizedFactorization : public Recommender {
 public:
  explicit GeneralizedFactorization(const RecommenderConfig& config);
  Scores score(const RecommenderInput& input) override;

 private:
  RecommenderTable user_factors_;
  RecommenderTable item_factors_;
  nn::Linear output_;
};

/// A linear layer over that product and the last layer of an MLP, whose input are other factors of
/// user and item, side by side. The MLP's first layer stands in two: a user's half is computed once
/// for all of the user's items.
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
  std::vector<std::unique_ptr<nn::Linear>> layers_;  // behind the first one
  nn::Linear output_;
};

}  // namespace tessera::models
