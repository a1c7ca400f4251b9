// The data, the model's configuration and the batches of a run of train_recommender. They are equal
// on every rank.
#pragma once

#include <memory>
#include <optional>

#include "apps/cli/saved_weights.h"
#include "apps/train_recommender_options.h"
#include "data/ratings/histories.h"
#include "data/ratings/rating_batches.h"
#include "data/ratings/rating_data.h"
#include "models/recommender/recommender.h"
#include "models/recommender/recommender_file.h"
#include "train/ratings/plan_ratings.h"
#include "train/ratings/rating_evaluation.h"

namespace tessera::apps {

/// A task cannot be copied, because its members refer to each other.
struct RecommenderTask {
  /// The task refers to `all`, which must outlive it. Throws InputError if the options do not fit
  /// the data (data::RatingBatches, train::RankingTask).
  RecommenderTask(const RecommenderTrainOptions& options, const data::RatingData& all);
  RecommenderTask(const RecommenderTask&) = delete;
  RecommenderTask& operator=(const RecommenderTask&) = delete;

  const data::RatingData& data;
  data::Histories histories;
  train::RatingRange range;  // of the training ratings
  models::RecommenderConfig config;
  data::RatingBatches batches;
  std::optional<train::RankingTask> ranking;  // the held-out items, if a ranking is evaluated

  /// Sets config.mean and `range` to the mean and the range of the ratings on which the saved
  /// weights were trained, instead of those of this run's training ratings. Does nothing if the
  /// saved metadata do not describe a recommender.
  void use(const SavedWeights& saved);

  std::unique_ptr<models::Recommender> build(const RecommenderTrainOptions& options) const;
  /// Returns the contents of the weights file besides the weights.
  models::RecommenderFile file(const RecommenderTrainOptions& options) const;
  train::PlannedRatings planned(const RecommenderTrainOptions& options) const;
};

}  // namespace tessera::apps
