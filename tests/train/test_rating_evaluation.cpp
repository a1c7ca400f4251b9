// Compares evaluations of recommenders with plain loops over users, items and ratings. Also tests
// batch sizes, the choice of sampled items, and rankings by popularity.
#include "train/ratings/rating_evaluation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/autograd.h"
#include "data/ratings/drawn_ratings.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensors.h"
#include "tests/support/training.h"
#include "train/ratings/scoring.h"

namespace tessera::test {
namespace {

using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using data::Histories;
using data::Ratings;
using train::RankingQuality;
using train::RankingTask;

constexpr int64_t user_count = 23;
constexpr int64_t item_count = 37;

/// Random ratings in two parts. Either every fifth rating or each user's last rating is held out
/// for validation.
struct Data {
  Ratings training = {};
  Ratings validation = {};
  Histories histories;

  static Data drawn(bool last) {
    const Ratings all =
        data::PlantedRatings(
            {.users = user_count, .items = item_count, .ratings = 301, .rank = 1, .seed = 2})
            .draw();
    Ratings training, validation;
    for (size_t i = 0; i < all.users.size(); ++i) {
      const bool is_last = i + 1 == all.users.size() || all.users[i + 1] != all.users[i];
      Ratings& part = (last ? is_last : i % 5 == 2) ? validation : training;
      part.users.push_back(all.users[i]);
      part.items.push_back(all.items[i]);
      part.values.push_back(all.values[i]);
    }
    Histories histories(training, user_count, item_count);
    return {std::move(training), std::move(validation), std::move(histories)};
  }
};

Ratings pairs(const std::vector<std::pair<int32_t, int32_t>>& list) {
  Ratings ratings;
  for (const auto& [user, item] : list) {
    ratings.users.push_back(user);
    ratings.items.push_back(item);
    ratings.values.push_back(1);
  }
  return ratings;
}

std::unique_ptr<models::Recommender> built(const std::string& name, int64_t items = item_count,
                                           int64_t users = user_count) {
  auto model = models::recommender({.name = name,
                                    .users = users,
                                    .items = items,
                                    .factors = 3,
                                    .hidden = {4, 3},
                                    .mean = name == "mf" || name == "svd++" ? 3.0f : 0.0f});
  nn::materialize(*model, default_device(), 1);
  uint64_t seed = 1;
  for (const nn::NamedParameter& named : model->named_parameters()) {
    const Tensor& tensor = named.parameter.tensor();
    tensor.copy_from(random_tensor(tensor.shape(), seed++));
  }
  return model;
}

/// Returns one user's scores of all items, from one forward pass.
std::vector<double> plain_scores(models::Recommender& model, const Histories& histories,
                                 int32_t user) {
  const NoGrad no_grad;
  const std::span<const int32_t> own = histories.of(user);
  const data::RatingBatch batch = data::allocate_rating_batch(
      {.samples = 1, .longest_history = std::max<int64_t>(1, histories.longest())}, false);
  data::write_history(histories, user, 0, batch);
  batch.users.values<int32_t>()[0] = user;
  models::RecommenderInput input = train::recommender_input(batch);
  input.items = Tensor::empty({1, model.config().items}, DType::i32);
  const auto numbers = input.items.values<int32_t>();
  std::iota(numbers.begin(), numbers.end(), 0);
  return doubles(model.score(input).scores);
}

std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

void check_close(const RankingQuality& actual, const RankingQuality& expected) {
  CHECK(actual.hit_rate == Approx(expected.hit_rate));
  CHECK(actual.ndcg == Approx(expected.ndcg));
  CHECK(actual.recall == Approx(expected.recall));
  CHECK(actual.mrr == Approx(expected.mrr));
}

/// Returns the candidates among which a user's held-out item is ranked. Tests each item alone: the
/// tested item gets the highest score, and the held-out item gets the second highest. If the
/// held-out item is then ranked second (mrr 1/2), the tested item is a candidate.
std::set<int32_t> sampled_items(const RankingTask& task, int32_t user, int32_t held_out) {
  const auto items = static_cast<size_t>(task.training().items());
  std::set<int32_t> found;
  for (int32_t item = 0; item < task.training().items(); ++item) {
    if (item == held_out) continue;
    std::vector<float> scores(items, 0.0f);
    scores[static_cast<size_t>(held_out)] = 0.5f;
    scores[static_cast<size_t>(item)] = 1;
    if (task.quality(user, scores).mrr == 0.5f) found.insert(item);
  }
  // The scores below are higher for all other items than for the held-out item. All candidates must
  // therefore rank before the held-out item.
  std::vector<float> scores(items, 1.0f);
  scores[static_cast<size_t>(held_out)] = 0;
  CHECK(task.quality(user, scores).mrr == Approx(1.0 / static_cast<double>(found.size() + 1)));
  return found;
}

TEST_CASE("errors of ratings equal those of a plain loop that clamps predictions") {
  const std::string name = GENERATE("mf", "svd++");
  const int64_t samples = GENERATE(1, 7, 60, 64);
  CAPTURE(name, samples);
  const Data data = Data::drawn(false);
  REQUIRE(data.validation.size() == 60);
  const auto model = built(name);
  const train::RatingRange range{.lowest = 2.5f, .highest = 4};
  double squares = 0;
  double distances = 0;
  int64_t outside = 0;
  for (size_t i = 0; i < data.validation.users.size(); ++i) {
    const double score = plain_scores(*model, data.histories, data.validation.users[i])
                             .at(static_cast<size_t>(data.validation.items[i]));
    outside += score < 2.5 || score > 4 ? 1 : 0;
    const double error = std::clamp(score, 2.5, 4.0) - double{data.validation.values[i]};
    squares += error * error;
    distances += std::abs(error);
  }
  CHECK(outside > 5);
  CHECK(outside < 55);
  const train::RatingErrors errors = train::evaluate_ratings(
      *model, data.histories, data.validation, range, samples, lone_world());
  CHECK(errors.rmse == Approx(std::sqrt(squares / 60)));
  CHECK(errors.mae == Approx(distances / 60));
  CHECK(train::rating_evaluation_sizes(model->config(), data.histories, data.validation, samples)
            .batches == (60 + samples - 1) / samples);
}

TEST_CASE("evaluations leave a model in the mode that it had before") {
  const bool training = GENERATE(true, false);
  const Data data = Data::drawn(false);
  const auto model = built("mf");
  model->train(training);
  train::evaluate_ratings(*model, data.histories, data.validation, {.lowest = 1, .highest = 5}, 8,
                          lone_world());
  CHECK(model->training() == training);
  train::evaluate_ranking(*model, {data.histories, data.validation, {.k = 5}}, lone_world());
  CHECK(model->training() == training);
}

TEST_CASE("a prediction that is not finite makes the errors NaN") {
  const float value = GENERATE(NAN, INFINITY, -INFINITY);
  const Data data = Data::drawn(false);
  const auto model = built("mf");
  for (const nn::NamedParameter& named : model->named_parameters()) {
    if (named.name != "item_bias.weight") continue;
    named.parameter.tensor().values<float>()[data.validation.items[0]] = value;
  }
  const train::RatingErrors errors = train::evaluate_ratings(
      *model, data.histories, data.validation, {.lowest = 1, .highest = 5}, 8, lone_world());
  CHECK(std::isnan(errors.rmse));
  CHECK(std::isnan(errors.mae));
}

TEST_CASE("a score that is not finite makes the quality of a ranking NaN") {
  const float value = GENERATE(NAN, INFINITY);
  const int64_t sampled = GENERATE(0, 9);
  CAPTURE(value, sampled);
  const Data data = Data::drawn(sampled > 0);
  const auto model = built("mf");
  for (const nn::NamedParameter& named : model->named_parameters()) {
    if (named.name == "item_factors.weight") named.parameter.tensor().values<float>()[4] = value;
  }
  const RankingTask task(data.histories, data.validation, {.k = 5, .sampled = sampled});
  const RankingQuality quality = train::evaluate_ranking(*model, task, lone_world());
  CHECK(std::isnan(quality.hit_rate));
  CHECK(std::isnan(quality.ndcg));
  CHECK(std::isnan(quality.recall));
  CHECK(std::isnan(quality.mrr));
}

TEST_CASE("the range of ratings is from the lowest to the highest") {
  Ratings ratings = pairs({{0, 0}, {0, 1}, {1, 0}});
  ratings.values = {3, 0.5f, 4.5f};
  CHECK(train::rating_range(ratings).lowest == 0.5f);
  CHECK(train::rating_range(ratings).highest == 4.5f);
  CHECK_THROWS_AS(train::rating_range(Ratings{}), Error);
}

TEST_CASE("the quality of a ranking is the mean over users, and equals a plain loop's") {
  const std::string name = GENERATE("mf", "svd++", "gmf", "neumf");
  const int64_t sampled = GENERATE(0, 9);
  CAPTURE(name, sampled);
  const Data data = Data::drawn(sampled > 0);
  const auto model = built(name);
  const RankingTask task(data.histories, data.validation, {.k = 5, .sampled = sampled, .seed = 3});
  double sums[4] = {};
  for (const int32_t user : task.users()) {
    const std::vector<float> scores = floats(plain_scores(*model, data.histories, user));
    std::vector<int64_t> places;
    for (size_t i = 0; i < data.validation.users.size(); ++i) {
      if (data.validation.users[i] != user) continue;
      const int32_t held_out = data.validation.items[i];
      int64_t place = 0;
      const std::set<int32_t> drawn =
          sampled > 0 ? sampled_items(task, user, held_out) : std::set<int32_t>{};
      for (int32_t item = 0; item < item_count; ++item) {
        const bool candidate = sampled > 0 ? drawn.contains(item) : !data.histories.has(user, item);
        const float other = scores[static_cast<size_t>(item)];
        place += candidate && other > scores[static_cast<size_t>(held_out)] ? 1 : 0;
      }
      places.push_back(place);
    }
    const RankingQuality one = train::ranking_quality(places, 5);
    sums[0] += double{one.hit_rate};
    sums[1] += double{one.ndcg};
    sums[2] += double{one.recall};
    sums[3] += double{one.mrr};
  }
  const auto mean = [&](int i) {
    return static_cast<float>(sums[i] / static_cast<double>(task.users().size()));
  };
  const RankingQuality expected{
      .hit_rate = mean(0), .ndcg = mean(1), .recall = mean(2), .mrr = mean(3)};
  check_close(train::evaluate_ranking(*model, task, lone_world()), expected);
  CHECK(expected.hit_rate > 0);
  CHECK(expected.mrr < 1);
}

TEST_CASE("a catalogue that is too large to score at once is scored in parts") {
  constexpr int64_t many = 70'001;
  const auto model = built("svd++", many, 4);
  const Ratings training = pairs({{0, 3}, {0, 69'999}, {1, 65'536}, {3, 5}});
  const Histories histories(training, 4, many);
  const auto sizes = train::ranking_evaluation_sizes(model->config(), histories, 4);
  REQUIRE(sizes.items == 65'536);
  REQUIRE(sizes.samples == 1);
  REQUIRE(sizes.batches == 4);
  train::Scorer scorer(*model, histories, sizes);
  for (int32_t user = 0; user < 4; ++user) {
    const std::vector<double> expected = plain_scores(*model, histories, user);
    const std::span<const float> scores = scorer.catalogue(std::span(&user, 1));
    REQUIRE(scores.size() == expected.size());
    double error = 0;
    for (size_t i = 0; i < scores.size(); ++i) {
      error = larger_difference(error, std::abs(double{scores[i]} - expected[i]));
    }
    CHECK(error < 1e-5);
  }
  const RankingTask task(histories, pairs({{0, 70'000}, {2, 65'535}}), {});
  double mrr = 0;
  for (const auto& [user, item] : {std::pair{0, 70'000}, {2, 65'535}}) {
    const std::vector<float> scores = floats(plain_scores(*model, histories, user));
    mrr += 0.5 / static_cast<double>(
                     1 + train::places_in_catalogue(scores, histories.of(user), {&item, 1})[0]);
  }
  CHECK(train::evaluate_ranking(*model, task, lone_world()).mrr == Approx(mrr).epsilon(1e-3));
}

TEST_CASE("an evaluation of few items scores several users at once") {
  const Data data = Data::drawn(true);
  const auto config = built("svd++")->config();
  const auto sizes = train::ranking_evaluation_sizes(config, data.histories, 23);
  CHECK(sizes.samples == 23);
  CHECK(sizes.items == item_count);
  CHECK(sizes.batches == 1);
  CHECK(sizes.longest_history == data.histories.longest());
  const auto many = train::ranking_evaluation_sizes(config, data.histories, 10'000);
  CHECK(many.samples == 65'536 / item_count);
  CHECK(many.batches == 6);  // a batch has at most 1771 users
  CHECK(many.input_bytes() == many.batch().bytes() + 4 * item_count);
}

TEST_CASE("sampled items are distinct, and neither in training nor held out") {
  const Data data = Data::drawn(true);
  const RankingTask task(data.histories, data.validation, {.sampled = 9, .seed = 5});
  const RankingTask again(data.histories, data.validation, {.k = 3, .sampled = 9, .seed = 5});
  const RankingTask other(data.histories, data.validation, {.sampled = 9, .seed = 6});
  CHECK(task.protocol() == "9 sampled items");
  CHECK(task.measure() == "ndcg@10 among 9 sampled items");
  REQUIRE(std::ssize(task.users()) == data.validation.size());
  std::set<std::set<int32_t>> different;
  int64_t changed = 0;
  for (size_t i = 0; i < data.validation.users.size(); ++i) {
    const int32_t user = data.validation.users[i];
    const int32_t held_out = data.validation.items[i];
    const std::set<int32_t> items = sampled_items(task, user, held_out);
    CHECK(items.size() == 9);
    CHECK_FALSE(items.contains(held_out));
    for (const int32_t item : items) CHECK_FALSE(data.histories.has(user, item));
    CHECK(items == sampled_items(again, user, held_out));
    changed += items == sampled_items(other, user, held_out) ? 0 : 1;
    different.insert(items);
  }
  CHECK(changed > 15);
  CHECK(different.size() > 15);
}

TEST_CASE("all remaining items can be sampled, but no more than these") {
  const Histories training(pairs({{0, 0}, {0, 2}, {1, 1}}), 3, 6);
  const Ratings held_out = pairs({{0, 4}, {2, 5}});
  const RankingTask task(training, held_out, {.sampled = 3});
  CHECK(task.users() == std::vector<int32_t>{0, 2});
  CHECK(sampled_items(task, 0, 4) == std::set<int32_t>{1, 3, 5});
  const auto refusal = [&](const Ratings& validation, int64_t sampled) {
    return message_of<InputError>(
        [&] { const RankingTask unused(training, validation, {.sampled = sampled}); });
  };
  CHECK(refusal(held_out, 4) ==
        "user number 0 has 3 items left to sample from, expected at least the 4 of "
        "--sampled-items");
  CHECK_THAT(refusal(pairs({{1, 0}, {1, 3}}), 1),
             ContainsSubstring("user number 1 has 2 held-out items"));
  CHECK(refusal(pairs({{1, 0}, {1, 3}}), 0) == "nothing was thrown");
  CHECK_THAT(refusal(pairs({{1, 6}}), 0), ContainsSubstring("user number 1 has item 6"));
  CHECK_THAT(message_of<Error>([&] { const RankingTask unused(training, Ratings{}, {}); }),
             ContainsSubstring("no user has a held-out item"));
  const std::vector<std::string> ids{"ann", "ben", "cleo"};
  CHECK(message_of<InputError>([&] {
          const RankingTask unused(training, held_out, {.sampled = 4, .user_ids = ids});
        }) ==
        "user 'ann' has 3 items left to sample from, expected at least the 4 of "
        "--sampled-items");
}

TEST_CASE("popularity ranks by how many users have an item, and leaves out what a user has") {
  // Three users have item 2, two have item 0, one has item 1, one has item 3, and none has item 4.
  const Histories training(pairs({{0, 2}, {1, 2}, {2, 2}, {1, 0}, {2, 0}, {0, 1}, {1, 3}}), 4, 5);
  CHECK(RankingTask(training, pairs({{3, 2}}), {}).popularity().mrr == 1);
  // For user 3, items 2, 0 and 1 rank before item 3. (Items 1 and 3 have one user each, so the item
  // with the lower index ranks first.) User 0 already has items 1 and 2, so only item 0 ranks
  // before item 3.
  CHECK(RankingTask(training, pairs({{3, 3}}), {}).popularity().mrr == 0.25f);
  CHECK(RankingTask(training, pairs({{0, 3}}), {}).popularity().mrr == 0.5f);
  const RankingTask task(training, pairs({{0, 3}, {3, 4}, {3, 2}}), {.k = 1});
  CHECK(task.protocol() == "all 5 items");
  CHECK(task.measure() == "ndcg@1 among all 5 items");
  const RankingQuality quality = task.popularity();
  CHECK(quality.hit_rate == 0.5f);  // user 3 has a hit (item 2), user 0 has none
  CHECK(quality.ndcg == 0.5f);
  CHECK(quality.recall == 0.25f);
  CHECK(quality.mrr == 0.75f);
}

TEST_CASE("popularity equals a ranking in which each item's score is its number of users") {
  const int64_t sampled = GENERATE(0, 9);
  CAPTURE(sampled);
  const Data data = Data::drawn(sampled > 0);
  const RankingTask task(data.histories, data.validation, {.k = 5, .sampled = sampled, .seed = 3});
  std::vector<float> counts(static_cast<size_t>(item_count), 0.0f);
  for (const int32_t item : data.histories.all()) counts[static_cast<size_t>(item)] += 1;
  RankingQuality mean;
  for (const int32_t user : task.users()) {
    const RankingQuality one = task.quality(user, counts);
    mean.hit_rate += one.hit_rate / static_cast<float>(task.users().size());
    mean.ndcg += one.ndcg / static_cast<float>(task.users().size());
    mean.recall += one.recall / static_cast<float>(task.users().size());
    mean.mrr += one.mrr / static_cast<float>(task.users().size());
  }
  check_close(task.popularity(), mean);
}

}  // namespace
}  // namespace tessera::test
