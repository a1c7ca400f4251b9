#include "models/recommender/matrix_factorization.h"

#include "core/ops.h"
#include "core/table_ops.h"

namespace tessera::models {
namespace {

// Factors start small, so that at first the biases learn the most.
nn::Initializer factors() { return nn::Initializer::normal(0.1f); }

}  // namespace

// Embedding tables are registered in the order in which forward uses them. ZeRO packs gradients
// into buckets in the reverse order. Backward computes the gradients in the same reverse order. So
// backward completes one bucket after the other, and ZeRO can send each bucket early.
MatrixFactorization::MatrixFactorization(const RecommenderConfig& config)
    : Recommender(config),
      user_bias_(config.users, 1,
                 table_options(nn::Initializer::zeros(), config.distinct.users)),
      item_bias_(config.items, 1,
                 table_options(nn::Initializer::zeros(), config.distinct.items)),
      user_factors_(config.users, config.factors, table_options(factors(), config.distinct.users)),
      item_factors_(config.items, config.factors,
                    table_options(factors(), config.distinct.items)) {
  // row_products looks up rows in several tables, and its backward reads all of these tables at the
  // same time. ZeRO stage 3 gathers the tables of a block of the model (Module::begin_block)
  // together, so these tables are in one block.
  const auto add_looked_up = [this](const std::string& name, RecommenderTable& table) {
    table.weight.set_backward_reads(nn::BackwardReads::always);
    add(name, table);
  };
  if (config.reads_histories()) {
    history_factors_.emplace(config.items, config.factors,
                             table_options(factors(), config.distinct.history));
    add("user_bias", user_bias_);
    add("user_factors", user_factors_);
    add("history_factors", *history_factors_);
    begin_block();
  } else {
    begin_block();
    add_looked_up("user_bias", user_bias_);
    add_looked_up("user_factors", user_factors_);
  }
  add_looked_up("item_bias", item_bias_);
  add_looked_up("item_factors", item_factors_);
}

Tensor MatrixFactorization::user_rows(const RecommenderInput& input) {
  const Tensor own = user_factors_(input.users);
  return own + ops::embedding_bag(input.history, input.history_offsets, history_factors_->weight,
                                  input.history_scale);
}

Scores MatrixFactorization::score(const RecommenderInput& input) {
  const ops::Lookup items{item_factors_.weight, input.items, item_bias_.weight};
  if (!history_factors_) {
    const ops::Lookup users{user_factors_.weight, input.users, user_bias_.weight};
    const auto [products, squares] = ops::row_products(users, items, input.penalized);
    return {products + config().mean, {}, squares, input.penalized};
  }
  const Tensor bias = user_bias_(input.users);  // (B, 1)
  const auto [products, squares] = ops::row_products({user_rows(input)}, items, input.penalized);
  return {products + bias + config().mean, {bias}, squares, input.penalized};
}

}  // namespace tessera::models
