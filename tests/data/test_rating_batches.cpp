#include "data/ratings/rating_batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "core/memory.h"
#include "data/ratings/rating_data.h"
#include "data/ratings/rating_input.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using data::Histories;
using data::RatingBatch;
using data::RatingBatches;
using data::RatingBatchSizes;
using data::Ratings;

namespace {

constexpr int64_t user_count = 20;
constexpr int64_t item_count = 31;

const Ratings& drawn() {
  static const Ratings ratings =
      data::PlantedRatings(
          {.users = user_count, .items = item_count, .ratings = 203, .rank = 1, .seed = 3})
          .draw();
  return ratings;
}
const Histories& histories() {
  static const Histories made(drawn(), user_count, item_count);
  return made;
}

MicroBatch micro_batch(const Batch& batch, int64_t step, int64_t index) {
  return {
      .step = step, .index = index, .first_sample = index * batch.micro, .samples = batch.micro};
}

template <class T>
std::vector<T> list_of(const Tensor& tensor) {
  const auto values = tensor.values<T>();
  return {values.begin(), values.end()};
}

struct Samples {
  std::vector<int32_t> users = {};
  std::vector<int32_t> items = {};
  std::vector<float> targets = {};
  bool operator==(const Samples&) const = default;
};

// Returns all samples of a step, micro-batch after micro-batch.
Samples step_of(const RatingBatches& batches, const Batch& batch, int64_t step) {
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  Samples samples;
  for (int64_t index = 0; index < batch.micro_batches(); ++index) {
    const RatingBatch read = batches.read(micro_batch(batch, step, index));
    append(samples.users, list_of<int32_t>(read.users));
    append(samples.items, list_of<int32_t>(read.items));
    append(samples.targets, list_of<float>(read.targets));
  }
  return samples;
}

std::string refusal(const Ratings& ratings, const Histories& own,
                    const RatingBatches::Options& options) {
  return test::message_of<InputError>([&] { const RatingBatches unused(ratings, own, options); });
}

}  // namespace

TEST_CASE("an epoch of ratings has each interaction at most once, in an order of its own") {
  const int64_t global = GENERATE(1, 10, 203);
  CAPTURE(global);
  const RatingBatches batches(drawn(), histories(), {.batch = {.global = global}, .seed = 5});
  const int64_t steps = batches.steps_per_epoch();
  REQUIRE(steps == 203 / global);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
      REQUIRE(batches.epoch(step) == epoch);
      for (int64_t sample = 0; sample < global; ++sample) {
        order.push_back(batches.index_of(step, sample));
      }
    }
    const std::set<int64_t> once(order.begin(), order.end());
    REQUIRE(std::ssize(once) == steps * global);
    REQUIRE(*once.begin() >= 0);
    REQUIRE(*once.rbegin() < 203);
    orders.insert(order);
  }
  REQUIRE(orders.size() == 3);
  const RatingBatches other(drawn(), histories(), {.batch = {.global = global}, .seed = 6});
  std::vector<int64_t> order;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < global; ++i) order.push_back(other.index_of(step, i));
  }
  REQUIRE_FALSE(orders.contains(order));
}

TEST_CASE("samples depend on seed and position only, not on the micro-batch") {
  const auto steps_with = [](int64_t micro, uint64_t seed, int64_t global = 12) {
    const Batch batch{.global = global, .micro = micro};
    const RatingBatches batches(drawn(), histories(),
                                {.batch = batch, .seed = seed, .negatives = 3, .ranks = true});
    Samples all;
    for (int64_t step = 0; step < 24 * 12 / global; ++step) {  // reaches into the second epoch
      const Samples samples = step_of(batches, batch, step);
      all.users.insert(all.users.end(), samples.users.begin(), samples.users.end());
      all.items.insert(all.items.end(), samples.items.begin(), samples.items.end());
      all.targets.insert(all.targets.end(), samples.targets.begin(), samples.targets.end());
    }
    return all;
  };
  const Samples expected = steps_with(12, 1);
  REQUIRE(expected.users.size() == 24 * 12);
  for (const int64_t micro : {1, 3, 4}) CHECK(steps_with(micro, 1) == expected);
  CHECK(steps_with(12, 2) != expected);
  // The global batch size only changes how an epoch is split into steps. So global batches of 12
  // and of 4 must give equal samples, up to the last whole step of 12 in the first epoch.
  const Samples others = steps_with(2, 1, 4);
  const size_t both = 12 * (203 / 12);
  for (size_t i = 0; i < both; ++i) {
    REQUIRE(others.users[i] == expected.users[i]);
    for (size_t k = 4 * i; k < 4 * i + 4; ++k) REQUIRE(others.items[k] == expected.items[k]);
  }
}

TEST_CASE("negatives are items that the user does not have, drawn anew in each epoch") {
  const Batch batch{.global = 29, .micro = 29};
  const RatingBatches batches(drawn(), histories(),
                              {.batch = batch, .seed = 4, .negatives = 5, .ranks = true});
  const RatingBatches other(drawn(), histories(),
                            {.batch = batch, .seed = 5, .negatives = 5, .ranks = true});
  int64_t equal_epochs = 0;
  int64_t equal_numbers = 0;
  int64_t equal_seeds = 0;
  for (int64_t interaction = 0; interaction < 203; ++interaction) {
    const int32_t user = drawn().users[static_cast<size_t>(interaction)];
    for (int64_t number = 0; number < 5; ++number) {
      const int32_t item = batches.negative(0, interaction, number);
      REQUIRE_FALSE(histories().has(user, item));
      REQUIRE((item >= 0 && item < item_count));
      REQUIRE(item == batches.negative(0, interaction, number));
      equal_epochs += item == batches.negative(1, interaction, number) ? 1 : 0;
      equal_numbers += item == batches.negative(0, interaction, number + 1) ? 1 : 0;
      equal_seeds += item == other.negative(0, interaction, number) ? 1 : 0;
    }
  }
  // Each of the 1015 negatives was compared with three others: one of the next epoch, one with the
  // next `number`, and one with another seed. A negative is drawn from about 20 items, so about one
  // pair in twenty is equal by chance. Therefore each count should be about 50.
  CHECK(equal_epochs < 150);
  CHECK(equal_numbers < 150);
  CHECK(equal_seeds < 150);
}

TEST_CASE("negatives are uniform over all items that the user does not have") {
  const RatingBatches batches(drawn(), histories(), {.seed = 8, .negatives = 1, .ranks = true});
  for (const int64_t interaction : {0, 100, 202}) {
    const int32_t user = drawn().users[static_cast<size_t>(interaction)];
    const int64_t others = histories().others(user);
    std::map<int32_t, int64_t> counts;
    const int64_t draws = 500 * others;
    for (int64_t i = 0; i < draws; ++i) ++counts[batches.negative(i / 7, interaction, i % 7)];
    REQUIRE(std::ssize(counts) == others);
    double chi_squared = 0;
    for (const auto& [item, count] : counts) {
      const double error = static_cast<double>(count) - 500;
      chi_squared += error * error / 500;
    }
    // With f degrees of freedom, chi-squared has mean f and variance 2 f. Five standard deviations
    // above the mean and four below are allowed.
    const auto freedom = static_cast<double>(others - 1);
    CAPTURE(interaction, others, chi_squared);
    CHECK(chi_squared < freedom + 5 * std::sqrt(2 * freedom));
    CHECK(chi_squared > freedom - 4 * std::sqrt(2 * freedom));
  }
}

TEST_CASE("targets are ratings, or one for interactions and zero for drawn negatives") {
  const Batch batch{.global = 14, .micro = 7};
  const bool ranks = GENERATE(false, true);
  const RatingBatches batches(
      drawn(), histories(),
      {.batch = batch, .seed = 2, .negatives = ranks ? 2 : 0, .ranks = ranks});
  const int64_t per_sample = ranks ? 3 : 1;
  const int64_t step = GENERATE(1, 15);  // in the first epoch, and in the second one
  REQUIRE(batches.epoch(step) == step / 14);
  const MicroBatch micro = micro_batch(batch, step, 1);
  const RatingBatch read = batches.read(micro);
  REQUIRE(read.users.shape() == Shape{7});
  REQUIRE(read.items.shape() == Shape{7, per_sample});
  REQUIRE(read.targets.shape() == Shape{7, per_sample});
  REQUIRE_FALSE(read.history.defined());
  const auto users = read.users.values<int32_t>();
  const auto items = read.items.values<int32_t>();
  const auto targets = read.targets.values<float>();
  for (int64_t row = 0; row < 7; ++row) {
    const int64_t index = batches.index_of(step, 7 + row);
    const auto from = static_cast<size_t>(index);
    REQUIRE(users[row] == drawn().users[from]);
    REQUIRE(items[row * per_sample] == drawn().items[from]);
    REQUIRE(targets[row * per_sample] == (ranks ? 1.0f : drawn().values[from]));
    for (int64_t k = 1; k < per_sample; ++k) {
      REQUIRE(items[row * per_sample + k] == batches.negative(step / 14, index, k - 1));
      REQUIRE(targets[row * per_sample + k] == 0.0f);
    }
  }
}

TEST_CASE("histories of a batch are stored one after the other, each with its scale") {
  const Batch batch{.global = 26, .micro = 13};
  const RatingBatches batches(drawn(), histories(), {.batch = batch, .histories = true});
  REQUIRE(batches.sizes().longest_history == histories().longest());
  const RatingBatch read = batches.read(micro_batch(batch, 3, 1));
  REQUIRE(read.history.shape() == Shape{13 * histories().longest()});
  REQUIRE(read.history_offsets.shape() == Shape{14});
  const auto offsets = read.history_offsets.values<int32_t>();
  REQUIRE(offsets[0] == 0);
  for (int64_t row = 0; row < 13; ++row) {
    const int32_t user = read.users.values<int32_t>()[row];
    const std::span<const int32_t> own = histories().of(user);
    const auto begin = read.history.values<int32_t>().begin() + offsets[row];
    REQUIRE(offsets[row + 1] - offsets[row] == std::ssize(own));
    REQUIRE(std::equal(own.begin(), own.end(), begin));
    REQUIRE(read.history_scale.values<float>()[row] ==
            1 / std::sqrt(static_cast<float>(own.size())));
  }
  // Outside of training a user may have no history.
  const Histories none(std::vector<int32_t>{1}, {0, 0, 1}, 2, "a file");
  const RatingBatch two = data::allocate_rating_batch({.samples = 2, .longest_history = 1}, false);
  data::write_history(none, 0, 0, two);
  data::write_history(none, 1, 1, two);
  REQUIRE(list_of<int32_t>(two.history_offsets) == std::vector<int32_t>{0, 0, 1});
  REQUIRE(list_of<float>(two.history_scale) == std::vector<float>{0, 1});
  REQUIRE(two.history.values<int32_t>()[0] == 1);
}

TEST_CASE("a batch of ratings takes as many bytes as its sizes say") {
  const auto sizes = GENERATE(RatingBatchSizes{}, RatingBatchSizes{.samples = 7, .items = 3},
                              RatingBatchSizes{.samples = 5, .items = 2, .longest_history = 11});
  const MemoryLedger& ledger = memory_ledger(Device{});
  const auto taken = [&](auto&& allocate) {
    const int64_t before = ledger.current(Category::activations);
    const int64_t total = ledger.current_total();
    const RatingBatch batch = allocate();
    REQUIRE(ledger.current_total() - total == ledger.current(Category::activations) - before);
    return ledger.current(Category::activations) - before;
  };
  CHECK(taken([&] { return data::allocate_rating_batch(sizes, false); }) == sizes.bytes());
  CHECK(taken([&] { return data::allocate_rating_input(sizes); }) == sizes.bytes());
  // Computed by hand: users, items and targets, then histories, offsets and scales.
  CHECK(RatingBatchSizes{.samples = 5, .items = 2, .longest_history = 11}.bytes() ==
        4 * (5 + 10 + 10) + 4 * (55 + 6 + 5));
}

TEST_CASE("a loaded input equals the batch that is read, always in the same memory") {
  const Batch batch{.global = 8, .micro = 4};
  const RatingBatches batches(drawn(), histories(),
                              {.batch = batch, .negatives = 2, .ranks = true, .histories = true});
  data::RatingInput input(batches);
  const void* const memory = input.batch().items.raw();
  for (const int64_t index : {1, 0, 1}) {
    const MicroBatch micro = micro_batch(batch, 2, index);
    input.load(micro);
    const RatingBatch expected = batches.read(micro);
    REQUIRE(input.batch().items.raw() == memory);
    REQUIRE(list_of<int32_t>(input.batch().items) == list_of<int32_t>(expected.items));
    REQUIRE(list_of<int32_t>(input.batch().history_offsets) ==
            list_of<int32_t>(expected.history_offsets));
  }
  REQUIRE(data::RatingInput::host_bytes(batches.sizes(), Device{}) == 0);
}

TEST_CASE("ratings of another batch are refused, and nothing is written") {
  const Batch batch{.global = 8, .micro = 2};
  const RatingBatches batches(drawn(), histories(), {.batch = batch, .histories = true});
  // `users` of the batch is the beginning of a larger tensor, so that the test can see if a read
  // writes past the end of `users`.
  const RatingBatch larger = data::allocate_rating_batch(
      {.samples = 4, .longest_history = batches.sizes().longest_history}, false);
  const auto users = larger.users.values<int32_t>();
  std::ranges::fill(users, -1);
  RatingBatch into = data::allocate_rating_batch(batches.sizes(), false);
  into.users = larger.users.rows(0, 2);
  const auto refused = [&](const MicroBatch& micro) {
    return test::message_of<Error>([&] { batches.read(micro, into); });
  };
  for (const int64_t samples : {1, 4}) {
    const std::string expected = fmt::format(
        "ratings: a micro-batch has {} samples, but the micro-batches of RatingBatches have 2",
        samples);
    CHECK(refused({.samples = samples}) == expected);
    CHECK(test::message_of<Error>([&] { batches.read({.samples = samples}); }) == expected);
    data::RatingInput input(batches);
    CHECK(test::message_of<Error>([&] { input.load({.samples = samples}); }) == expected);
  }
  CHECK(std::ranges::count(users, -1) == 4);
  CHECK(refused({.first_sample = 8, .samples = 2}) ==
        "ratings: sample 8 of a step is asked for, but the global batch of RatingBatches has 8 "
        "samples");
  into.users = larger.users;
  CHECK(refused({.samples = 2}) ==
        "ratings: users of the batch to read into has shape [4], expected [2]");
  into.users = larger.users.rows(0, 2);
  into.history = {};
  CHECK_THAT(refused({.samples = 2}), ContainsSubstring("history of the batch to read into has "
                                                        "shape none"));
}

TEST_CASE("too few interactions for a step, and users with all items, are refused") {
  CHECK(refusal(drawn(), histories(), {.batch = {.global = 204}}) ==
        "203 interactions to train on do not fill a global batch of 204: give a smaller batch");
  CHECK(refusal(drawn(), histories(), {.batch = {.global = 203}}) == "nothing was thrown");
  CHECK_THAT(refusal(drawn(), histories(), {.batch = {.global = 10, .micro = 3}}),
             ContainsSubstring("multiple"));
  const Ratings full{.users = {0, 1, 1}, .items = {0, 0, 1}, .values = {1, 1, 1}, .times = {}};
  const Histories own(full, 2, 2);
  CHECK(refusal(full, own, {.negatives = 1, .ranks = true}) ==
        "user number 1 has all 2 items, so that none can be drawn as a negative");
  const std::vector<std::string> ids{"ann", "ben"};
  CHECK(refusal(full, own, {.negatives = 1, .ranks = true, .user_ids = ids}) ==
        "user 'ben' has all 2 items, so that none can be drawn as a negative");
  CHECK(refusal(full, own, {}) == "nothing was thrown");
}
