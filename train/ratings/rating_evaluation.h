// Measures how well a recommender predicts held-out ratings, and how well it ranks held-out items.
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

/// The sizes of an evaluation, which do not depend on the number of ranks. Every forward pass has
/// the same sizes, because the last batch is filled up with copies of its last sample.
struct RatingEvaluationSizes {
  int64_t samples = 1;          // interactions or users per batch
  int64_t items = 1;            // items scored in one forward pass for each sample
  bool shared_items = false;    // true: a forward pass scores the same items for all its users
  int64_t longest_history = 0;  // 0 if the model reads no histories
  int64_t batches = 0;          // batches of all ranks together

  data::RatingBatchSizes batch() const {
    return {.samples = samples, .items = 1, .longest_history = longest_history};
  }
  /// Returns the bytes of the input: the batch, and with shared_items an index for each shared
  /// item.
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

// At the end of an evaluation, an all-reduce brings the f32 results of all batches or users to
// every rank.
inline constexpr int64_t rating_evaluation_counts = 2;   // results per batch of evaluate_ratings
inline constexpr int64_t ranking_evaluation_counts = 4;  // results per user of evaluate_ranking

/// Returns the sizes with which evaluate_ratings runs.
RatingEvaluationSizes rating_evaluation_sizes(const models::RecommenderConfig& config,
                                              const data::Histories& histories,
                                              const data::Ratings& validation, int64_t samples);

/// Evaluates all ratings of `validation` in batches of `samples`. `histories` are the users'
/// training interactions. Ratings of a user or item without training interactions are predicted
/// too, with parameters that no rating has trained. Predictions are clamped to `range`. If a
/// prediction is not finite, rmse and mae are NaN. The batches are divided among the ranks. Every
/// rank gets the same bits, for any number of ranks. Collective.
RatingErrors evaluate_ratings(models::Recommender& model, const data::Histories& histories,
                              const data::Ratings& validation, const RatingRange& range,
                              int64_t samples, const dist::World& world);

/// Held-out items of users, and the candidates among which each held-out item is ranked.
class RankingTask {
 public:
  struct Options {
    int64_t k = 10;
    int64_t sampled = 0;  // number of sampled candidates; 0: all but the user's training items
    uint64_t seed = 0;    // sampled candidates depend on (seed, user, item)
    std::span<const std::string> user_ids = {};  // for error messages; empty: users' numbers
  };
  /// `training` and `user_ids` must outlive this object. With sampled candidates, throws InputError
  /// if a user has too few items to sample from, or more than one held-out item. Throws Error if no
  /// user has a held-out item.
  RankingTask(const data::Histories& training, const data::Ratings& validation,
              const Options& options);

  const data::Histories& training() const { return training_; }
  /// The users who have a held-out item, in ascending order.
  const std::vector<int32_t>& users() const { return users_; }
  /// Returns the quality for a user, from the scores of all items.
  RankingQuality quality(int32_t user, std::span<const float> scores) const;
  /// Returns the quality of a baseline without a model. For every user, the baseline ranks items by
  /// their number of training interactions.
  RankingQuality popularity() const;
  /// Describes the candidates: "all 1682 items" or "99 sampled items".
  std::string protocol() const;
  /// Describes the quality by which models are compared: "ndcg@10 among all 1682 items".
  std::string measure() const;

 private:
  std::vector<int32_t> sample(int32_t user, int32_t item) const;

  const data::Histories& training_;
  data::Histories held_out_;
  Options options_;
  std::vector<int32_t> users_;
};

/// Returns the sizes with which evaluate_ranking runs.
RatingEvaluationSizes ranking_evaluation_sizes(const models::RecommenderConfig& config,
                                               const data::Histories& histories, int64_t users);

/// Returns the mean quality over the task's users. The mean is NaN if a score is not finite. The
/// batches of users are divided among the ranks as in evaluate_ratings. Collective.
RankingQuality evaluate_ranking(models::Recommender& model, const RankingTask& task,
                                const dist::World& world);

}  // namespace tessera::train
