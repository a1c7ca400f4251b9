#include "models/recommender/matrix_factorization.h"

#include "core/ops.h"

namespace tessera::models {
namespace {

// Small factors, of which the biases learn the most at first.
nn::Initializer factors() { return nn::Initializer::normal(0.1f); }

}  // namespace

MatrixFactorization::MatrixFactorization(const RecommenderConfig& config)
    : Recommender(config),
      user_factors(config.users, config.factors, factors()),
      item_factors(config.items, config.factors, factors()),
      user_bias_(config.users, 1, nn::Initializer::zeros()),
      item_bias_(config.items, 1, nn::Initializer::zeros()) {
  add("user_factors", user_factors);
  add("item_factors", item_factors);
  add("user_bias", user_bias_);
  add("item_bias", item_bias_);
}

Scores MatrixFactorization::score(const RecommenderInput& input) {
  return score_with(user_factors(input.users), input);
}

Scores MatrixFactorization::score_with(const Tensor& user_rows, const RecommenderInput& input) {
  const Tensor q = item_factors(input.items);                                      // (B, K, F)
  const Tensor p = ops::reshape(user_rows, {user_rows.size(0), 1, user_rows.size(1)});
  const Tensor b_u = user_bias_(input.users);                                      // (B, 1)
  const Tensor b_i = item_bias_(input.items);                                      // (B, K, 1)
  const Tensor products = ops::sum(p * q, {-1});                                   // (B, K)
  const Tensor biases = b_u + ops::reshape(b_i, input.items.shape());
  return {products + biases + config().mean, {user_rows, q, b_u, b_i}};
}

SvdPlusPlus::SvdPlusPlus(const RecommenderConfig& config)
    : MatrixFactorization(config), history_factors_(config.items, config.factors, factors()) {
  add("history_factors", history_factors_);
}

Scores SvdPlusPlus::score(const RecommenderInput& input) {
  const Tensor liked = ops::embedding_bag(input.history, input.history_offsets,
                                          history_factors_.weight, input.history_scale);
  return score_with(user_factors(input.users) + liked, input);
}

}  // namespace tessera::models
