// Where training finds the samples of a micro-batch: in the same memory every time, which a graph
// needs (core/cuda.h), and which is filled while the host goes on.
//
//   RatingInput input(batches);
//   input.load(micro);
//   model.score(input.batch());
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/cuda.h"
#include "data/ratings/rating_batches.h"

namespace tessera::data {

class RatingInput {
 public:
  /// On the default device; `batches` must outlive it.
  explicit RatingInput(const RatingBatches& batches);
  /// What it holds on the host, besides the input itself on the GPU; nothing for the CPU.
  static int64_t host_bytes(const RatingBatchSizes& sizes, Device device);

  /// Launches the copy of a micro-batch's samples, behind what reads those before.
  void load(const MicroBatch& micro);

  const RatingBatch& batch() const { return input_; }

 private:
  /// Of a GPU's input on the host, pinned: the device copies one while the host fills the other.
  struct Slot {
    RatingBatch batch;
    std::optional<cuda::Event> copied;
  };

  const RatingBatches& batches_;
  RatingBatch input_;
  std::vector<Slot> slots_;  // none on the CPU
  size_t next_ = 0;
};

/// Launches the copy of a batch on the host to one of the same sizes on a GPU.
void copy_batch(const RatingBatch& to, const RatingBatch& from);

}  // namespace tessera::data
