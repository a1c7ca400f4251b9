#include "models/recommender/recommender_loss.h"

#include "core/ops.h"

namespace tessera::models {
namespace {

Tensor bpr(const Tensor& scores) {
  TESSERA_CHECK(scores.size(1) >= 2, "bpr: scores have shape {}, expected at least two items",
                scores.shape());
  const std::vector<Tensor> parts = ops::split(scores, {1, scores.size(1) - 1}, -1);
  return ops::mean(ops::softplus(parts[1] - parts[0]));
}

Tensor objective_of(const Tensor& scores, const Tensor& targets, RecommenderObjective objective) {
  // The losses below would broadcast other shapes.
  TESSERA_CHECK(objective == RecommenderObjective::bpr || targets.shape() == scores.shape(),
                "recommender_loss: targets have shape {}, expected {}, as the scores",
                targets.shape(), scores.shape());
  switch (objective) {
    case RecommenderObjective::rating:
      return ops::mse_loss(scores, targets);
    case RecommenderObjective::bce:
      return ops::bce_with_logits(scores, targets);
    case RecommenderObjective::bpr:
      return bpr(scores);
  }
  fail("recommender_loss: there is no objective {}", static_cast<int>(objective));
}

}  // namespace

Tensor recommender_loss(const Scores& scores, const Tensor& targets, RecommenderObjective objective,
                        float l2) {
  const Tensor loss = objective_of(ops::convert(scores.scores, DType::f32), targets, objective);
  if (l2 == 0) return loss;
  TESSERA_CHECK(scores.penalized,
                "recommender_loss: l2 is {}, but the input of the scores was not penalized", l2);
  Tensor squares;
  const auto add = [&squares](const Tensor& sum) {
    squares = squares.defined() ? squares + sum : sum;
  };
  for (const Tensor& rows : scores.rows) add(ops::sum(ops::square(rows)));
  if (scores.squares.defined()) add(scores.squares);
  return loss + squares * (l2 / static_cast<float>(scores.scores.size(0)));
}

}  // namespace tessera::models
