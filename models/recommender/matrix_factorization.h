// Scores that are inner products of factors, with biases: mf and svd++.
#pragma once

#include "models/recommender/recommender.h"

namespace tessera::models {

/// mean + b_u + b_i + p_u . q_i
class MatrixFactorization : public Recommender {
 public:
  explicit MatrixFactorization(const RecommenderConfig& config);
  Scores score(const RecommenderInput& input) override;

 protected:
  /// Scores with these rows (B, F) in the place of the users' factors p.
  Scores score_with(const Tensor& user_rows, const RecommenderInput& input);

  RecommenderTable user_factors;
  RecommenderTable item_factors;

 private:
  RecommenderTable user_bias_;
  RecommenderTable item_bias_;
};

/// mean + b_u + b_i + (p_u + |N(u)|^-1/2 sum of y_j over N(u)) . q_i, N(u) the items that the user
/// has in training.
class SvdPlusPlus : public MatrixFactorization {
 public:
  explicit SvdPlusPlus(const RecommenderConfig& config);
  Scores score(const RecommenderInput& input) override;

 private:
  RecommenderTable history_factors_;
};

}  // namespace tessera::models
