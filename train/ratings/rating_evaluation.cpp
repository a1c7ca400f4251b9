#include "train/ratings/rating_evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/random.h"
#include "core/text/number_text.h"
#include "models/kernel_workspace.h"
#include "train/ratings/scoring.h"

namespace tessera::train {
namespace {

using models::pieces;

int64_t history_of(const models::RecommenderConfig& config, const data::Histories& histories) {
  return config.reads_histories() ? std::max<int64_t>(1, histories.longest()) : 0;
}

/// Calls body(batch, counts) for this rank's share of the batches, with `counts` true. If this rank
/// has one batch fewer than other ranks, also calls body once for the last of all batches, with
/// `counts` false, so that all ranks run the same number of forward passes.
template <class Body>
void for_each_own_batch(int64_t batches, const dist::World& world, Body&& body) {
  const int64_t own = pieces(batches, world.size);
  for (int64_t i = 0; i < own; ++i) {
    const int64_t number = i * world.size + world.rank;
    body(std::min(number, batches - 1), number < batches);
  }
}

/// Sums the results over ranks. Each result is 0 on all ranks except one, so that the sum is exact,
/// and a NaN stays a NaN.
std::vector<float> brought_together(const std::vector<float>& own, const dist::World& world) {
  const Tensor sums = Tensor::from({std::ssize(own)}, own);
  world.communicator->all_reduce(sums, {dist::Traffic::other}).wait();
  const Tensor host = sums.to_host();
  return {host.values<float>().begin(), host.values<float>().end()};
}

data::Histories histories_of(const data::Histories& training, const data::Ratings& ratings) {
  return data::Histories(ratings, training.users(), training.items());
}

}  // namespace

RatingRange rating_range(const data::Ratings& ratings) {
  TESSERA_CHECK(ratings.size() > 0, "rating_range: there are no ratings");
  const auto [lowest, highest] = std::minmax_element(ratings.values.begin(), ratings.values.end());
  return {.lowest = *lowest, .highest = *highest};
}

RatingEvaluationSizes rating_evaluation_sizes(const models::RecommenderConfig& config,
                                              const data::Histories& histories,
                                              const data::Ratings& validation, int64_t samples) {
  return {.samples = samples,
          .longest_history = history_of(config, histories),
          .batches = pieces(validation.size(), samples)};
}

RatingErrors evaluate_ratings(models::Recommender& model, const data::Histories& histories,
                              const data::Ratings& validation, const RatingRange& range,
                              int64_t samples, const dist::World& world) {
  const RatingEvaluationSizes sizes =
      rating_evaluation_sizes(model.config(), histories, validation, samples);
  std::vector<float> own(static_cast<size_t>(sizes.batches * rating_evaluation_counts), 0.0f);
  {
    const nn::Evaluating evaluating(model);
    Scorer scorer(model, histories, sizes);
    std::vector<int32_t> users(static_cast<size_t>(samples));
    std::vector<int32_t> items(static_cast<size_t>(samples));
    for_each_own_batch(sizes.batches, world, [&](int64_t batch, bool counts) {
      const int64_t first = batch * samples;
      const int64_t count = std::min(samples, validation.size() - first);
      for (int64_t i = 0; i < samples; ++i) {
        const auto from = static_cast<size_t>(first + std::min(i, count - 1));
        users[static_cast<size_t>(i)] = validation.users[from];
        items[static_cast<size_t>(i)] = validation.items[from];
      }
      const std::span<const float> scores = scorer.pairs(users, items);
      if (!counts) return;
      double squares = 0;
      double distances = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float score = scores[static_cast<size_t>(i)];
        // A score that is not finite becomes NaN. Clamping would turn infinity into a good rating.
        const float rating = std::isfinite(score) ? std::clamp(score, range.lowest, range.highest)
                                                  : std::numeric_limits<float>::quiet_NaN();
        const double error =
            static_cast<double>(rating) - validation.values[static_cast<size_t>(first + i)];
        squares += error * error;
        distances += std::abs(error);
      }
      float* const at = own.data() + batch * rating_evaluation_counts;
      at[0] = static_cast<float>(squares);
      at[1] = static_cast<float>(distances);
    });
  }
  const std::vector<float> sums = brought_together(own, world);
  double squares = 0;
  double distances = 0;
  for (size_t i = 0; i < sums.size(); i += rating_evaluation_counts) {
    squares += sums[i];
    distances += sums[i + 1];
  }
  const auto count = static_cast<double>(validation.size());
  return {.rmse = without_nan_sign(static_cast<float>(std::sqrt(squares / count))),
          .mae = without_nan_sign(static_cast<float>(distances / count))};
}

RankingTask::RankingTask(const data::Histories& training, const data::Ratings& validation,
                         const Options& options)
    : training_(training), held_out_(histories_of(training, validation)), options_(options) {
  for (int32_t user = 0; user < held_out_.users(); ++user) {
    const int64_t count = std::ssize(held_out_.of(user));
    if (count > 0) users_.push_back(user);
    if (count == 0 || options_.sampled == 0) continue;
    if (count > 1) {
      fail_input(
          "{} has {} held-out items; with sampled items each user may have one, as --split last "
          "gives",
          data::name_of_user(options_.user_ids, user), count);
    }
    if (training_.others(user) - count < options_.sampled) {
      fail_input("{} has {} left to sample from, expected at least the {} of --sampled-items",
                 data::name_of_user(options_.user_ids, user),
                 counted(training_.others(user) - count, "item"), options_.sampled);
    }
  }
  TESSERA_CHECK(!users_.empty(), "RankingTask: no user has a held-out item, expected at least one");
}

std::vector<int32_t> RankingTask::sample(int32_t user, int32_t item) const {
  const auto pair = static_cast<uint64_t>(user) * static_cast<uint64_t>(training_.items()) +
                    static_cast<uint64_t>(item);
  RandomStream stream(options_.seed, "items to rank among", pair);
  std::vector<int32_t> items;
  std::unordered_set<int32_t> taken{item};
  const auto others = static_cast<uint64_t>(training_.others(user));
  while (std::ssize(items) < options_.sampled) {
    const int32_t drawn = training_.other(user, static_cast<int64_t>(stream.below(others)));
    if (taken.insert(drawn).second) items.push_back(drawn);
  }
  return items;
}

RankingQuality RankingTask::quality(int32_t user, std::span<const float> scores) const {
  const std::span<const int32_t> held_out = held_out_.of(user);
  std::vector<int64_t> places;
  if (options_.sampled == 0) {
    places = places_in_catalogue(scores, training_.of(user), held_out);
  } else {
    for (const int32_t item : held_out) {
      places.push_back(place_among(scores, sample(user, item), item));
    }
  }
  return ranking_quality(places, options_.k);
}

namespace {

/// Returns the mean quality over the users. The sums are in f64 and in the order of the users.
RankingQuality mean_quality(std::span<const float> numbers) {
  double sums[ranking_evaluation_counts] = {};
  for (size_t i = 0; i < numbers.size(); ++i) {
    sums[i % ranking_evaluation_counts] += static_cast<double>(numbers[i]);
  }
  const auto users = static_cast<double>(numbers.size() / ranking_evaluation_counts);
  const auto mean = [&](size_t i) { return without_nan_sign(static_cast<float>(sums[i] / users)); };
  return {.hit_rate = mean(0), .ndcg = mean(1), .recall = mean(2), .mrr = mean(3)};
}

/// Ranks the items by their count of training interactions, the largest count first. Items with
/// equal counts are in the order of their indices. Returns each item's place, from 0.
std::vector<int64_t> places_by_popularity(const data::Histories& training) {
  std::vector<int64_t> counts(static_cast<size_t>(training.items()), 0);
  for (const int32_t item : training.all()) ++counts[static_cast<size_t>(item)];
  std::vector<size_t> items(counts.size());
  std::iota(items.begin(), items.end(), size_t{0});
  std::stable_sort(items.begin(), items.end(),
                   [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  std::vector<int64_t> places(counts.size());
  for (size_t place = 0; place < items.size(); ++place) {
    places[items[place]] = static_cast<int64_t>(place);
  }
  return places;
}

/// Returns the user's quality, or NaN if a score is not finite. Without this check, the quality
/// would be a number even for NaN scores, and would hide that the weights or the data are invalid.
RankingQuality quality_if_finite(const RankingTask& task, int32_t user,
                                 std::span<const float> scores) {
  if (std::ranges::all_of(scores, [](float score) { return std::isfinite(score); })) {
    return task.quality(user, scores);
  }
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  return {.hit_rate = nan, .ndcg = nan, .recall = nan, .mrr = nan};
}

void write_quality(const RankingQuality& quality, float* to) {
  to[0] = quality.hit_rate;
  to[1] = quality.ndcg;
  to[2] = quality.recall;
  to[3] = quality.mrr;
}

}  // namespace

RankingQuality RankingTask::popularity() const {
  // The baseline ranks the items in the same order for every user, so the items are sorted once. A
  // pass over all items for each user, as in quality(), would take much longer for 25 million
  // ratings.
  const std::vector<int64_t> places = places_by_popularity(training_);
  std::vector<float> numbers(users_.size() * ranking_evaluation_counts);
  for (size_t i = 0; i < users_.size(); ++i) {
    const int32_t user = users_[i];
    std::vector<int64_t> own;
    for (const int32_t item : held_out_.of(user)) {
      const int64_t place = places[static_cast<size_t>(item)];
      const auto count_before = [&](std::span<const int32_t> items) {
        return std::count_if(items.begin(), items.end(), [&](int32_t other) {
          return places[static_cast<size_t>(other)] < place;
        });
      };
      own.push_back(options_.sampled == 0 ? place - count_before(training_.of(user))
                                          : count_before(sample(user, item)));
    }
    write_quality(ranking_quality(own, options_.k), numbers.data() + i * ranking_evaluation_counts);
  }
  return mean_quality(numbers);
}

std::string RankingTask::protocol() const {
  return options_.sampled == 0 ? fmt::format("all {} items", training_.items())
                               : fmt::format("{} sampled items", options_.sampled);
}

std::string RankingTask::measure() const {
  return fmt::format("ndcg@{} among {}", options_.k, protocol());
}

RatingEvaluationSizes ranking_evaluation_sizes(const models::RecommenderConfig& config,
                                               const data::Histories& histories, int64_t users) {
  // The maximum number of pairs of a user and an item that a forward pass scores. The limit is
  // needed, because each pair takes memory. For example, with 64 factors the element-wise product
  // of the user's and the item's row takes 256 bytes per pair in f32, so 16 MiB for all pairs.
  constexpr int64_t pairs_at_once = 1 << 16;
  const int64_t items = std::min(config.items, pairs_at_once);
  const int64_t samples = std::min(users, std::max<int64_t>(1, pairs_at_once / items));
  return {.samples = samples,
          .items = items,
          .shared_items = true,
          .longest_history = history_of(config, histories),
          .batches = pieces(users, samples)};
}

RankingQuality evaluate_ranking(models::Recommender& model, const RankingTask& task,
                                const dist::World& world) {
  const std::vector<int32_t>& users = task.users();
  const RatingEvaluationSizes sizes =
      ranking_evaluation_sizes(model.config(), task.training(), std::ssize(users));
  std::vector<float> own(users.size() * ranking_evaluation_counts, 0.0f);
  {
    const nn::Evaluating evaluating(model);
    Scorer scorer(model, task.training(), sizes);
    std::vector<int32_t> batch_users(static_cast<size_t>(sizes.samples));
    for_each_own_batch(sizes.batches, world, [&](int64_t batch, bool counts) {
      const int64_t first = batch * sizes.samples;
      const int64_t count = std::min(sizes.samples, std::ssize(users) - first);
      for (int64_t i = 0; i < sizes.samples; ++i) {
        batch_users[static_cast<size_t>(i)] =
            users[static_cast<size_t>(first + std::min(i, count - 1))];
      }
      const std::span<const float> scores = scorer.catalogue(batch_users);
      if (!counts) return;
      const auto items = static_cast<size_t>(model.config().items);
      for (int64_t i = 0; i < count; ++i) {
        const auto row = static_cast<size_t>(i);
        write_quality(quality_if_finite(task, batch_users[row], scores.subspan(row * items, items)),
                      own.data() + (first + i) * ranking_evaluation_counts);
      }
    });
  }
  return mean_quality(brought_together(own, world));
}

}  // namespace tessera::train
