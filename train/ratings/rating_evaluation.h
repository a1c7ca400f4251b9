// How well a recommender predicts ratings, and ranks items that its users chose, on interactions
// that it was not trained on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/ratings/histories.h"
#include "data/ratings/rating_batches.h"
#include "data/ratings/rating_data.h"
#include "dist/bootstrap.h"
#include "models/recommender/recommender.h"
#include "train/ratings/ranking_metrics.h"

namespace tessera::train {

/// Numbers of an evaluation, which do not depend on the ranks. Every forward of it has the same
/// sizes: the last batch is filled up with what was evaluated before.
struct RatingEvaluationSizes {
  int64_t samples = 1;          // of a batch: interactions, or users
  int64_t items = 1;            // scored for each at once
  bool shared_items = false;    // the same items for all users: the catalogue, or a part of it
  int64_t longest_history = 0;  // where the model reads histories
  int64_t batches = 0;          // of all ranks

  data::RatingBatchSizes batch() const {
    return {.samples = samples, .items = 1, .longest_history = longest_history};
  }
  /// Of what is read: the batch, and the catalogue's part.
  int64_t input_bytes() const { return batch().bytes() + (shared_items ? 4 * items : 0); }
};

struct RatingErrors {
  float rmse = 0;
  float mae = 0;
};
/// Ratings are between these: predictions are clamped to them.
struct RatingRange {
  float lowest = 0;
  float highest = 0;
};
RatingRange rating_range(const data::Ratings& ratings);

/// f32 that the ranks bring together at the end: of each batch of evaluate_ratings, and of each
/// user of evaluate_ranking.
inline constexpr int64_t rating_evaluation_counts = 2;
inline constexpr int64_t ranking_evaluation_counts = 4;

RatingEvaluationSizes rating_evaluation_sizes(const models::RecommenderConfig& config,
                                              const data::Histories& histories,
                                              const data::Ratings& validation, int64_t samples);

/// Over all of `validation`, `samples` at once. `histories` are those of training. An id that
/// training has no interaction of is predicted by its first values. The ranks share the batches;
/// every rank gets the same bits, which do not depend on how many ranks there are. Collective.
RatingErrors evaluate_ratings(models::Recommender& model, const data::Histories& histories,
                              const data::Ratings& validation, const RatingRange& range,
                              int64_t samples, const dist::World& world);

/// Held-out items, and what they are ranked among.
class RankingTask {
 public:
  struct Options {
    int64_t k = 10;
    int64_t sampled = 0;  // items that each is ranked among; 0: all that are not in training
    uint64_t seed = 0;    // of their choice, a function of (seed, user, item)
  };
  /// `training` must outlive it. Throws InputError where a user has not as many items to sample, or
  /// more than one held-out item to sample for.
  RankingTask(const data::Histories& training, const data::Ratings& validation,
              const Options& options);

  const data::Histories& training() const { return training_; }
  /// Those who have a held-out item, ascending.
  const std::vector<int32_t>& users() const { return users_; }
  /// Of a user, from the scores of all items.
  RankingQuality quality(int32_t user, std::span<const float> scores) const;
  /// Of a ranking by how many users have an item in training, the same for everybody: what a model
  /// has to beat.
  RankingQuality popularity() const;
  /// "all 1,682 items" or "99 sampled items"
  std::string protocol() const;

 private:
  std::vector<int32_t> sample(int32_t user, int32_t item) const;

  const data::Histories& training_;
  data::Histories held_out_;
  Options options_;
  std::vector<int32_t> users_;
};

RatingEvaluationSizes ranking_evaluation_sizes(const models::RecommenderConfig& config,
                                               const data::Histories& histories, int64_t users);

/// The mean over the task's users. As evaluate_ratings. Collective.
RankingQuality evaluate_ranking(models::Recommender& model, const RankingTask& task,
                                const dist::World& world);

}  // namespace tessera::train
