// The plan of a run on ratings: optim::plan with the model's activations and workspace
// (models/recommender/recommender_memory.h), and the batches that the run keeps in memory.
#pragma once

#include <cstdint>
#include <optional>

#include "data/ratings/rating_batches.h"
#include "models/recommender/recommender_loss.h"
#include "train/plan/run_plan.h"
#include "train/ratings/rating_evaluation.h"

namespace tessera::train {

/// The properties of a run's model and data that a plan needs.
struct PlannedRatings {
  models::RecommenderConfig config;
  models::RecommenderObjective objective = models::RecommenderObjective::rating;
  float l2 = 0;
  data::RatingBatchSizes batch;  // the sizes of a micro-batch
  /// The sizes of the evaluation; nullopt if there is none.
  std::optional<RatingEvaluationSizes> evaluation = std::nullopt;
  int64_t evaluation_results = 0;  // number of f32 values that the ranks sum in an evaluation
  /// Bytes of the copy of ids and histories that rank 0 makes in memory for each save during the
  /// run.
  int64_t saved_bytes = 0;
};

/// Returns the plan of a rank, with activations and workspace for this process's number of threads.
/// Throws InputError if a number of bytes exceeds int64.
optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const PlannedRatings& ratings,
                     const JobPlace& place);

}  // namespace tessera::train
