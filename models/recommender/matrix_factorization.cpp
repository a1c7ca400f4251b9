#include "models/recommender/matrix_factorization.h"

#include "core/ops.h"
#include "core/table_ops.h"

namespace tessera::models {
namespace {

// Small factors, of which the biases learn the most at first.
nn::Initializer factors() { return nn::Initializer::normal(0.1f); }

}  // namespace

// Tables are registered in the order in which they are used, as ZeRO's buckets assume. The items'
// factors are the only ones that backward reads: at stage 3 they come last, so that they are still
// there.
MatrixFactorization::MatrixFactorization(const RecommenderConfig& config)
    : Recommender(config),
      user_bias_(config.users, 1, nn::Initializer::zeros()),
      item_bias_(config.items, 1, nn::Initializer::zeros()),
      user_factors_(config.users, config.factors, factors()),
      item_factors_(config.items, config.factors, factors()) {
  item_factors_.weight.set_backward_reads(nn::BackwardReads::always);
  add("user_bias", user_bias_);
  add("item_bias", item_bias_);
  add("user_factors", user_factors_);
  if (config.reads_histories()) {
    history_factors_.emplace(config.items, config.factors, factors());
    add("history_factors", *history_factors_);
  }
  add("item_factors", item_factors_);
}

Tensor MatrixFactorization::user_rows(const RecommenderInput& input) {
  const Tensor own = user_factors_(input.users);
  if (!history_factors_) return own;
  return own + ops::embedding_bag(input.history, input.history_offsets, history_factors_->weight,
                                  input.history_scale);
}

Scores MatrixFactorization::score(const RecommenderInput& input) {
  const Tensor b_u = user_bias_(input.users);  // (B, 1)
  const Tensor b_i = item_bias_(input.items);  // (B, K, 1)
  const Tensor biases = b_u + ops::reshape(b_i, input.items.shape());
  const Tensor p = user_rows(input);  // (B, F)
  const auto [products, squares] =
      ops::row_products(p, input.items, item_factors_.weight, input.penalized);
  return {products + biases + config().mean, {p, b_u, b_i}, squares, input.penalized};
}

}  // namespace tessera::models
