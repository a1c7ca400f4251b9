// The models mf and svd++: their score is an inner product of factors, plus biases.
#pragma once

#include <optional>

#include "models/recommender/recommender.h"

namespace tessera::models {

/// The score of mf for user u and item i is mean + b_u + b_i + p_u . q_i, with biases b and factors
/// p and q. svd++ replaces p_u by
///   p_u + |N(u)|^-1/2 * (sum of y_j over all j in N(u)),
/// where N(u) are the items of user u in the training data, and y_j are the history factors.
class MatrixFactorization : public Recommender {
 public:
  explicit MatrixFactorization(const RecommenderConfig& config);
  Scores score(const RecommenderInput& input) override;

 private:
  /// Returns the users' factors in svd++, (B, F).
  Tensor user_rows(const RecommenderInput& input);

  RecommenderTable user_bias_;
  RecommenderTable item_bias_;
  RecommenderTable user_factors_;
  std::optional<RecommenderTable> history_factors_;  // y_j; svd++ only
  RecommenderTable item_factors_;
};

}  // namespace tessera::models
