// The plan of a run on ratings: optim::plan with the model's activations and workspace
// (models/recommender/recommender_memory.h), and the batches that the run holds.
#pragma once

#include <cstdint>
#include <optional>

#include "data/ratings/rating_batches.h"
#include "models/recommender/recommender_loss.h"
#include "train/plan/run_plan.h"
#include "train/ratings/rating_evaluation.h"

namespace tessera::train {

/// What a plan depends on in a run's model and data.
struct PlannedRatings {
  models::RecommenderConfig config;
  models::RecommenderObjective objective = models::RecommenderObjective::rating;
  float l2 = 0;
  data::RatingBatchSizes batch;  // of a micro-batch
  /// The sizes of the evaluation, if there is one, and the f32 values that the ranks sum for it.
  std::optional<RatingEvaluationSizes> evaluation = std::nullopt;
  int64_t evaluation_results = 0;
  /// Bytes that rank 0 writes beside the weights, if they are saved while the run goes on.
  int64_t saved_bytes = 0;
};

/// The plan of a rank, with activations and workspace at this process's number of threads. Throws
/// InputError if a number of bytes exceeds int64.
optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const PlannedRatings& ratings,
                     const JobPlace& place);

}  // namespace tessera::train
