// Provides the samples of a micro-batch to training. Each micro-batch overwrites the previous one
// in the same memory, because a CUDA graph needs fixed addresses (core/cuda.h). On a GPU, the copy
// of the samples runs while the host continues.
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
  /// Allocates a batch on the default device and, if that is a GPU, two batches in pinned host
  /// memory. `batches` must outlive this object.
  explicit RatingInput(const RatingBatches& batches);
  /// Returns the bytes of the host buffers that a RatingInput holds if `device` is a GPU; 0 for the
  /// CPU.
  static int64_t host_bytes(const RatingBatchSizes& sizes, Device device);

  /// Loads a micro-batch's samples. On a GPU, load() launches a copy, which the stream runs after
  /// the kernels that read the previous samples.
  void load(const MicroBatch& micro);

  const RatingBatch& batch() const { return input_; }

 private:
  /// One of two pinned host buffers: the GPU copies from one while the host fills the other.
  struct Slot {
    RatingBatch batch;
    std::optional<cuda::Event> copied;
  };

  const RatingBatches& batches_;
  RatingBatch input_;
  std::vector<Slot> slots_;  // empty on the CPU
  size_t next_ = 0;
};

/// Launches the copy of a batch in host memory to a batch of the same sizes on a GPU.
void copy_batch(const RatingBatch& to, const RatingBatch& from);

}  // namespace tessera::data
