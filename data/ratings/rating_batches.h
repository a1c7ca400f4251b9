// The samples of a recommender: which interactions a micro-batch has, which items are drawn beside
// them, and, for models that read it, what its users have liked.
//
//   const RatingBatches batches(data.train, histories, {.batch = batch, .negatives = 4});
//   RatingBatch into = batches.allocate(batch.micro);
//   batches.read(micro, into);                 // a function of (seed, step, m), never of the rank
#pragma once

#include <cstdint>
#include <memory>

#include "core/micro_batch.h"
#include "core/tensor.h"
#include "data/ratings/histories.h"

namespace tessera::data {

/// B samples of K items each. A history has a fixed number of places, of which the first ones are
/// used, so that memory does not depend on which users a batch has.
struct RatingBatch {
  Tensor users = {};            // i32 (B)
  Tensor items = {};            // i32 (B, K): the interaction's, and those drawn
  Tensor targets = {};          // f32 (B, K): ratings; or one, and zero for those drawn
  Tensor history = {};          // i32 (B * longest): the users' items in training, in turn
  Tensor history_offsets = {};  // i32 (B + 1): where each user's begin; the last: where all end
  Tensor history_scale = {};    // f32 (B): 1 / sqrt(items), or 0 for none
};

/// What a batch consists of, in numbers.
struct RatingBatchSizes {
  int64_t samples = 1;
  int64_t items = 1;            // of a sample
  int64_t longest_history = 0;  // 0: histories are not read, and these tensors are undefined

  int64_t history_places() const { return samples * longest_history; }
  int64_t bytes() const;
};

/// Memory on the host for a batch. Pinned: for copies to a GPU.
RatingBatch allocate_rating_batch(const RatingBatchSizes& sizes, bool pinned);
/// Memory of the default device.
RatingBatch allocate_rating_input(const RatingBatchSizes& sizes);

/// Writes a user's history behind those of the rows before it.
void write_history(const Histories& histories, int32_t user, int64_t row, const RatingBatch& into);

class RatingBatches {
 public:
  struct Options {
    Batch batch = {};
    uint64_t seed = 0;
    int64_t negatives = 0;   // items drawn for each interaction
    bool ranks = false;      // targets are one and zero, rather than ratings
    bool histories = false;  // batches have them
  };
  /// Both must outlive it. Throws InputError where the interactions do not fill one step, and where
  /// a user has all items, so that none can be drawn.
  RatingBatches(const Ratings& ratings, const Histories& histories, const Options& options);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t epoch(int64_t step) const { return step / steps_per_epoch_; }
  RatingBatchSizes sizes() const;
  /// The interaction that is sample `sample` of a step's global batch. An epoch is each once, in an
  /// order that (seed, epoch) choose, without the last ones, which do not fill a step.
  int64_t index_of(int64_t step, int64_t sample) const;
  /// Negative `number` for an interaction: an item that the user does not have in training, drawn
  /// anew in each epoch.
  int32_t negative(int64_t epoch, int64_t interaction, int64_t number) const;

  void read(const MicroBatch& micro, const RatingBatch& into) const;
  /// On the default device.
  RatingBatch read(const MicroBatch& micro) const;

 private:
  const Ratings& ratings_;
  const Histories& histories_;
  Options options_;
  int64_t steps_per_epoch_ = 0;
};

}  // namespace tessera::data
