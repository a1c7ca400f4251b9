#include "data/ratings/rating_batches.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/pinned_tensor.h"
#include "core/random.h"

namespace tessera::data {
namespace {

template <class Allocate>
RatingBatch batch_of(const RatingBatchSizes& sizes, Allocate&& allocate) {
  RatingBatch batch{.users = allocate({sizes.samples}, DType::i32),
                    .items = allocate({sizes.samples, sizes.items}, DType::i32),
                    .targets = allocate({sizes.samples, sizes.items}, DType::f32)};
  if (sizes.longest_history == 0) return batch;
  batch.history = allocate({sizes.history_places()}, DType::i32);
  batch.history_offsets = allocate({sizes.samples + 1}, DType::i32);
  batch.history_scale = allocate({sizes.samples}, DType::f32);
  return batch;
}

}  // namespace

int64_t RatingBatchSizes::bytes() const {
  const int64_t history = longest_history == 0 ? 0 : history_places() + 2 * samples + 1;
  return 4 * (samples + 2 * samples * items + history);
}

RatingBatch allocate_rating_batch(const RatingBatchSizes& sizes, bool pinned) {
  return batch_of(sizes, [pinned](const Shape& shape, DType dtype) {
    return pinned ? pinned_tensor(shape, dtype, Category::activations)
                  : Tensor::empty(shape, dtype, Device{});
  });
}

RatingBatch allocate_rating_input(const RatingBatchSizes& sizes) {
  return batch_of(sizes,
                  [](const Shape& shape, DType dtype) { return Tensor::empty(shape, dtype); });
}

void write_history(const Histories& histories, int32_t user, int64_t row, const RatingBatch& into) {
  const std::span<const int32_t> own = histories.of(user);
  int32_t* const offsets = into.history_offsets.data<int32_t>();
  if (row == 0) offsets[0] = 0;
  std::copy(own.begin(), own.end(), into.history.data<int32_t>() + offsets[row]);
  offsets[row + 1] = offsets[row] + static_cast<int32_t>(own.size());
  into.history_scale.data<float>()[row] =
      own.empty() ? 0.0f : 1 / std::sqrt(static_cast<float>(own.size()));
}

RatingBatches::RatingBatches(const Ratings& ratings, const Histories& histories,
                             const Options& options)
    : ratings_(ratings), histories_(histories), options_(options) {
  options_.batch.validate();
  steps_per_epoch_ = ratings.size() / options_.batch.global;
  if (steps_per_epoch_ < 1) {
    fail_input("{} interactions to train on do not fill a global batch of {}: give a smaller batch",
               ratings.size(), options_.batch.global);
  }
  for (int32_t user = 0; options_.negatives > 0 && user < histories.users(); ++user) {
    if (histories.others(user) > 0) continue;
    fail_input("{} has all {} items, so that none can be drawn as a negative",
               name_of_user(options_.user_ids, user), histories.items());
  }
  if (options_.histories && sizes().history_places() > INT32_MAX) {
    fail_input(
        "a micro-batch of {} samples with histories of up to {} items has more than 2^31 - 1"
        " places: give a smaller --micro-batch",
        options_.batch.micro, histories.longest());
  }
  expected_ = batch_of(sizes(), Tensor::unallocated);
}

RatingBatchSizes RatingBatches::sizes() const {
  return {.samples = options_.batch.micro,
          .items = 1 + options_.negatives,
          .longest_history = options_.histories ? std::max<int64_t>(1, histories_.longest()) : 0};
}

int64_t RatingBatches::index_of(int64_t step, int64_t sample) const {
  TESSERA_CHECK(sample >= 0 && sample < options_.batch.global,
                "ratings: sample {} of a step is asked for, but the global batch of RatingBatches "
                "has {} samples",
                sample, options_.batch.global);
  const int64_t place = step % steps_per_epoch_ * options_.batch.global + sample;
  return static_cast<int64_t>(permuted(static_cast<uint64_t>(place),
                                       static_cast<uint64_t>(ratings_.size()), options_.seed,
                                       "order of an epoch", static_cast<uint64_t>(epoch(step))));
}

int32_t RatingBatches::negative(int64_t epoch, int64_t interaction, int64_t number) const {
  constexpr auto purpose = static_cast<uint32_t>(stable_hash("negative item"));
  const auto sample = static_cast<uint64_t>(interaction);
  // `epoch` and `number` are cut to 32 bits, so epochs e and e + 2^32 draw the same items.
  const PhiloxCounter words =
      philox({static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32) ^ purpose,
              static_cast<uint32_t>(epoch), static_cast<uint32_t>(number)},
             philox_key(options_.seed));
  const int32_t user = ratings_.users[static_cast<size_t>(interaction)];
  const auto others = static_cast<uint64_t>(histories_.others(user));
  // Scales 32 random bits to [0, others). The probability of each value differs from 1 / others by
  // less than 2^-32.
  return histories_.other(user, static_cast<int64_t>(words[0] * others >> 32));
}

void RatingBatches::check(const MicroBatch& micro, const RatingBatch& into) const {
  TESSERA_CHECK(micro.samples == options_.batch.micro,
                "ratings: a micro-batch has {} samples, but the micro-batches of RatingBatches "
                "have {}",
                micro.samples, options_.batch.micro);
  const std::pair<const char*, Tensor RatingBatch::*> members[] = {
      {"users", &RatingBatch::users},
      {"items", &RatingBatch::items},
      {"targets", &RatingBatch::targets},
      {"history", &RatingBatch::history},
      {"history_offsets", &RatingBatch::history_offsets},
      {"history_scale", &RatingBatch::history_scale}};
  for (const auto& [name, member] : members) {
    const Tensor& tensor = into.*member;
    if (!(expected_.*member).defined()) continue;
    const Shape& shape = (expected_.*member).shape();
    TESSERA_CHECK(tensor.defined() && tensor.shape() == shape,
                  "ratings: {} of the batch to read into has shape {}, expected {}", name,
                  tensor.defined() ? fmt::format("{}", tensor.shape()) : "none", shape);
  }
}

void RatingBatches::read(const MicroBatch& micro, const RatingBatch& into) const {
  check(micro, into);
  const int64_t per_sample = 1 + options_.negatives;
  int32_t* const users = into.users.data<int32_t>();
  int32_t* items = into.items.data<int32_t>();
  float* targets = into.targets.data<float>();
  const int64_t this_epoch = epoch(micro.step);
  for (int64_t row = 0; row < micro.samples; ++row) {
    const int64_t index = index_of(micro.step, micro.first_sample + row);
    const auto at = static_cast<size_t>(index);
    users[row] = ratings_.users[at];
    items[0] = ratings_.items[at];
    targets[0] = options_.ranks ? 1.0f : ratings_.values[at];
    for (int64_t k = 1; k < per_sample; ++k) {
      items[k] = negative(this_epoch, index, k - 1);
      targets[k] = 0;
    }
    items += per_sample;
    targets += per_sample;
    if (options_.histories) write_history(histories_, users[row], row, into);
  }
}

RatingBatch RatingBatches::read(const MicroBatch& micro) const {
  const RatingBatch host = allocate_rating_batch(sizes(), false);
  read(micro, host);
  const auto moved = [](const Tensor& tensor) {
    return tensor.defined() ? tensor.to(default_device()) : tensor;
  };
  return {moved(host.users),   moved(host.items),           moved(host.targets),
          moved(host.history), moved(host.history_offsets), moved(host.history_scale)};
}

}  // namespace tessera::data
