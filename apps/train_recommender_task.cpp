#include "apps/train_recommender_task.h"

#include <algorithm>
#include <numeric>

namespace tessera::apps {
namespace {

float mean_rating(const data::Ratings& ratings) {
  const double sum = std::accumulate(ratings.values.begin(), ratings.values.end(), 0.0);
  return static_cast<float>(sum / static_cast<double>(ratings.size()));
}

// Returns, for each kind of embedding table, the largest number of distinct rows that a micro-batch
// can look up.
models::RecommenderConfig::Distinct distinct_rows(const models::RecommenderConfig& config,
                                                  const data::RatingBatchSizes& sizes) {
  return {.users = std::min(config.users, sizes.samples),
          .items = std::min(config.items, sizes.samples * sizes.items),
          .history = std::min(config.items, std::max<int64_t>(1, sizes.history_places()))};
}

}  // namespace

RecommenderTask::RecommenderTask(const RecommenderTrainOptions& options,
                                 const data::RatingData& all)
    : data(all),
      histories(all.train, all.users(), all.items()),
      range(train::rating_range(all.train)),
      config(options.model),
      batches(all.train, histories,
              {.batch = options.batch,
               .seed = options.seed,
               .negatives = options.negatives,
               .ranks = options.ranks,
               .histories = config.reads_histories(),
               .user_ids = all.user_ids}) {
  config.users = all.users();
  config.items = all.items();
  config.mean = options.ranks ? 0.0f : mean_rating(all.train);
  if (options.sparse) config.distinct = distinct_rows(config, batches.sizes());
  if (!options.ranks || options.eval_every == 0) return;
  ranking.emplace(histories, all.validation,
                  train::RankingTask::Options{.k = options.top,
                                              .sampled = options.sampled,
                                              .seed = options.seed,
                                              .user_ids = all.user_ids});
}

void RecommenderTask::use(const SavedWeights& saved) {
  if (!models::describes_recommender(saved.metadata)) return;
  const models::RecommenderFile file = models::parse_recommender(saved.path, saved.metadata);
  config.mean = file.config.mean;
  range = {.lowest = file.lowest, .highest = file.highest};
}

std::unique_ptr<models::Recommender> RecommenderTask::build(
    const RecommenderTrainOptions& options) const {
  auto model = models::recommender(config);
  model->to(parameter_dtype(options.memory));
  return model;
}

models::RecommenderFile RecommenderTask::file(const RecommenderTrainOptions& options) const {
  return {.config = config,
          .objective = options.objective_name(),
          .lowest = range.lowest,
          .highest = range.highest,
          .user_ids = data.user_ids,
          .item_ids = data.item_ids,
          .history = histories.all(),
          .history_begins = histories.offsets()};
}

train::PlannedRatings RecommenderTask::planned(const RecommenderTrainOptions& options) const {
  train::PlannedRatings result{.config = config,
                               .objective = options.objective,
                               .l2 = options.l2,
                               .batch = batches.sizes(),
                               .saved_bytes = models::recommender_tensor_bytes(file(options))};
  if (ranking) {
    const int64_t users = std::ssize(ranking->users());
    result.evaluation = train::ranking_evaluation_sizes(config, histories, users);
    result.evaluation_results = users * train::ranking_evaluation_counts;
  } else if (options.eval_every > 0) {
    result.evaluation =
        train::rating_evaluation_sizes(config, histories, data.validation, options.batch.micro);
    result.evaluation_results = result.evaluation->batches * train::rating_evaluation_counts;
  }
  return result;
}

}  // namespace tessera::apps
