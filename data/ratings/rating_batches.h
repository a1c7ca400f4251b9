// Prepares the samples of a recommender:
//  - the interactions of a micro-batch,
//  - the items that are drawn as negatives,
//  - the items that the users have in training, for models that read histories.
//
//   const RatingBatches batches(data.train, histories, {.batch = batch, .negatives = 4});
//   RatingBatch into = allocate_rating_batch(batches.sizes(), false);
//   batches.read(micro, into);                 // the same samples on any rank
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/micro_batch.h"
#include "core/tensor.h"
#include "data/ratings/histories.h"

namespace tessera::data {

/// B samples of K items each. `history` has a fixed size, so that all batches need the same amount
/// of memory. A batch uses the beginning of `history`. The remaining elements are undefined.
struct RatingBatch {
  Tensor users = {};            // i32 (B)
  Tensor items = {};            // i32 (B, K): the observed item, then drawn ones
  Tensor targets = {};          // f32 (B, K): the rating, or 1 when ranking; 0 for drawn items
  Tensor history = {};          // i32 (B * longest_history): training items, user after user
  Tensor history_offsets = {};  // i32 (B + 1): where each user's items begin, then the end
  Tensor history_scale = {};    // f32 (B): 1 / sqrt(items in the history); 0 if it is empty
};

struct RatingBatchSizes {
  int64_t samples = 1;
  int64_t items = 1;            // in each sample
  int64_t longest_history = 0;  // 0: histories are not read, and their tensors are undefined

  int64_t history_places() const { return samples * longest_history; }
  int64_t bytes() const;
};

/// Allocates a batch in host memory. The memory must be pinned if cuda::copy will copy from it.
RatingBatch allocate_rating_batch(const RatingBatchSizes& sizes, bool pinned);
/// Allocates a batch on the default device.
RatingBatch allocate_rating_input(const RatingBatchSizes& sizes);

/// Writes a user's history as row `row` of a batch. Rows must be written in order, because each row
/// begins where the previous row ends.
void write_history(const Histories& histories, int32_t user, int64_t row, const RatingBatch& into);

class RatingBatches {
 public:
  struct Options {
    Batch batch = {};
    uint64_t seed = 0;
    int64_t negatives = 0;   // items drawn for each interaction
    bool ranks = false;      // true: observed items have target 1, not their rating
    bool histories = false;  // true: batches have histories
    /// Error messages name a user by user_ids[user] or, if `user_ids` is empty, by the user's
    /// number.
    std::span<const std::string> user_ids = {};
  };
  /// `ratings`, `histories` and `user_ids` must outlive this object. Throws InputError
  ///  - if the interactions do not fill one step,
  ///  - if negatives are drawn and a user has all items,
  ///  - if RatingBatch::history would have more than 2^31 - 1 elements.
  RatingBatches(const Ratings& ratings, const Histories& histories, const Options& options);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t epoch(int64_t step) const { return step / steps_per_epoch_; }
  RatingBatchSizes sizes() const;
  /// Returns the index of the interaction that is sample `sample` of a step's global batch. An
  /// epoch visits each interaction at most once, in an order that depends on seed and epoch. The
  /// last interactions in this order are left out if they do not fill a step. Throws for a sample
  /// beyond the global batch.
  int64_t index_of(int64_t step, int64_t sample) const;
  /// Returns the item that is drawn as a negative of an interaction: an item that the user does not
  /// have in training. `interaction` is an index, as from index_of(). `number`, in [0, negatives),
  /// tells the negatives of an interaction apart. Each epoch draws new negatives.
  int32_t negative(int64_t epoch, int64_t interaction, int64_t number) const;

  /// Reads a micro-batch into `into`, a batch in host memory of the sizes that sizes() returns.
  /// Throws if `into` has other sizes, if the micro-batch does not have Options::batch.micro
  /// samples, or if the micro-batch reaches beyond the global batch.
  void read(const MicroBatch& micro, const RatingBatch& into) const;
  /// Reads a micro-batch onto the default device.
  RatingBatch read(const MicroBatch& micro) const;

 private:
  void check(const MicroBatch& micro, const RatingBatch& into) const;

  const Ratings& ratings_;
  const Histories& histories_;
  Options options_;
  int64_t steps_per_epoch_ = 0;
  RatingBatch expected_;  // tensors without memory, with the shapes of the batches to read into
};

}  // namespace tessera::data
