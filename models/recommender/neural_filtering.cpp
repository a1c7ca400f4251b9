#include "models/recommender/neural_filtering.h"

#include <string>

#include "core/image_ops.h"
#include "core/ops.h"

namespace tessera::models {
namespace {

// Factors are drawn with the standard deviation of the models' paper (He et al., WWW 2017). The
// layers use Glorot's initialization.
nn::Initializer factors() { return nn::Initializer::normal(0.01f); }

nn::Linear::Options glorot(int64_t in, int64_t out, bool bias = true) {
  return {.bias = bias, .initializer = nn::Initializer::xavier_uniform(in, out)};
}

/// (B, F) -> (B, 1, F), so that a user's row is broadcast over the user's items.
Tensor for_each_item(const Tensor& rows) {
  return ops::reshape(rows, {rows.size(0), 1, rows.size(1)});
}

/// (B, K, 1) -> (B, K)
Tensor as_scores(const Tensor& y) { return ops::reshape(y, {y.size(0), y.size(1)}); }

}  // namespace

GeneralizedFactorization::GeneralizedFactorization(const RecommenderConfig& config)
    : Recommender(config),
      user_factors_(config.users, config.factors, table_options(factors(), config.distinct.users)),
      item_factors_(config.items, config.factors, table_options(factors(), config.distinct.items)),
      output_(config.factors, 1, glorot(config.factors, 1)) {
  add("user_factors", user_factors_);
  add("item_factors", item_factors_);
  // ZeRO stage 3 gathers a block of the model as a whole. Each layer is a block, because one
  // operation reads the layer's weight and bias together.
  begin_block();
  add("output", output_);
}

Scores GeneralizedFactorization::score(const RecommenderInput& input) {
  const Tensor p = user_factors_(input.users);  // (B, F)
  const Tensor q = item_factors_(input.items);  // (B, K, F)
  return {as_scores(output_(for_each_item(p) * q)), {p, q}, {}, input.penalized};
}

NeuralFactorization::NeuralFactorization(const RecommenderConfig& config)
    : Recommender(config),
      user_factors_(config.users, config.factors, table_options(factors(), config.distinct.users)),
      item_factors_(config.items, config.factors, table_options(factors(), config.distinct.items)),
      mlp_user_factors_(config.users, config.hidden[0] / 2,
                        table_options(factors(), config.distinct.users)),
      mlp_item_factors_(config.items, config.hidden[0] / 2,
                        table_options(factors(), config.distinct.items)),
      user_half_(config.hidden[0] / 2, config.hidden[1],
                 glorot(config.hidden[0], config.hidden[1], false)),
      item_half_(config.hidden[0] / 2, config.hidden[1],
                 glorot(config.hidden[0], config.hidden[1])),
      output_(config.factors + config.hidden.back(), 1,
              glorot(config.factors + config.hidden.back(), 1)) {
  add("user_factors", user_factors_);
  add("item_factors", item_factors_);
  add("mlp_user_factors", mlp_user_factors_);
  add("mlp_item_factors", mlp_item_factors_);
  // Each layer is a block of the model, as in GeneralizedFactorization.
  const auto add_layer = [this](const std::string& name, nn::Linear& layer) {
    begin_block();
    add(name, layer);
  };
  add_layer("mlp.0.user", user_half_);
  add_layer("mlp.0.item", item_half_);
  for (size_t i = 2; i < config.hidden.size(); ++i) {
    const int64_t in = config.hidden[i - 1];
    const int64_t out = config.hidden[i];
    layers_.push_back(std::make_unique<nn::Linear>(in, out, glorot(in, out)));
    add_layer("mlp." + std::to_string(i - 1), *layers_.back());
  }
  add_layer("output", output_);
}

Scores NeuralFactorization::score(const RecommenderInput& input) {
  const Tensor p = user_factors_(input.users);              // (B, F)
  const Tensor q = item_factors_(input.items);              // (B, K, F)
  const Tensor mlp_p = mlp_user_factors_(input.users);      // (B, hidden[0] / 2)
  const Tensor mlp_q = mlp_item_factors_(input.items);      // (B, K, hidden[0] / 2)
  const Tensor of_user = for_each_item(user_half_(mlp_p));  // (B, 1, hidden[1])
  Tensor x = ops::relu(of_user + item_half_(mlp_q));
  for (const auto& layer : layers_) x = ops::relu((*layer)(x));
  const Tensor product = for_each_item(p) * q;
  return {
      as_scores(output_(ops::concat({product, x}, -1))), {p, q, mlp_p, mlp_q}, {}, input.penalized};
}

}  // namespace tessera::models
