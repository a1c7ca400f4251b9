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

/// The sizes of an evaluation, which do not depend on the ranks. Every forward has the same sizes:
/// the last batch is filled up with its last sample.
struct RatingEvaluationSizes {
  int64_t samples = 1;          // of a batch: interactions, or users
  int64_t items = 1;            // scored at once for each sample
  bool shared_items = false;    // the same items for all users: the catalogue, or a part of it
  int64_t longest_history = 0;  // if the model reads histories
  int64_t batches = 0;          // of all ranks

  data::RatingBatchSizes batch() const {
    return {.samples = samples, .items = 1, .longest_history = longest_history};
  }
  /// Bytes of the input: the batch, and the catalogue's part.
  int64_t input_bytes() const { return batch().bytes() + (shared_items ? 4 * items : 0); }
};

struct RatingErrors {
  float rmse = 0;
  float mae = 0;
};
/// The range of the ratings, to which predictions are clamped.
struct RatingRange {
  float lowest = 0;
  float highest = 0;
};
RatingRange rating_range(const data::Ratings& ratings);

/// f32 values that the ranks sum at the end: per batch of evaluate_ratings, and per user of
/// evaluate_ranking.
inline constexpr int64_t rating_evaluation_counts = 2;
inline constexpr int64_t ranking_evaluation_counts = 4;

RatingEvaluationSizes rating_evaluation_sizes(const models::RecommenderConfig& config,
                                              const data::Histories& histories,
                                              const data::Ratings& validation, int64_t samples);

/// Evaluates all of `validation`, `samples` at once. `histories` are those of training. An id
/// without an interaction in training is predicted by its initial values. The ranks share the
/// batches; every rank gets the same bits, which do not depend on the number of ranks. Collective.
RatingErrors evaluate_ratings(models::Recommender& model, const data::Histories& histories,
                              const data::Ratings& validation, const RatingRange& range,
                              int64_t samples, const dist::World& world);

/// Held-out items, and the items among which they are ranked.
class RankingTask {
 public:
  struct Options {
    int64_t k = 10;
    int64_t sampled = 0;  // sampled items to rank each among; 0: all that are not in training
    uint64_t seed = 0;    // of the sampling, which is a function of (seed, user, item)
  };
  /// `training` must outlive it. Throws InputError if, with sampled items, a user has too few items
  /// to sample from, or more than one held-out item.
  RankingTask(const data::Histories& training, const data::Ratings& validation,
              const Options& options);

  const data::Histories& training() const { return training_; }
  /// The users who have a held-out item, ascending.
  const std::vector<int32_t>& users() const { return users_; }
  /// The quality for a user, from the scores of all items.
  RankingQuality quality(int32_t user, std::span<const float> scores) const;
  /// The quality of ranking items by how many users have them in training, the same for every user:
  /// a baseline that a model has to beat.
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

/// The mean quality over the task's users, shared among ranks as in evaluate_ratings. Collective.
RankingQuality evaluate_ranking(models::Recommender& model, const RankingTask& task,
                                const dist::World& world);

}  // namespace tessera::train
