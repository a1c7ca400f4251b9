// Gives batches of images to training and evaluation. Worker threads prepare the batches ahead of
// load(). On a GPU all batches are loaded into one device buffer, because a CUDA graph needs a
// fixed address (core/cuda.h).
//
//   auto batches = std::make_shared<TrainingBatches>(data.train, transform, schedule);
//   ImageInput input(batches, {.workers = 2});
//   input.load(batches->number_of(micro));
//   model.loss(input.images(), input.labels());
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "core/cuda.h"
#include "data/images/image_queue.h"

namespace tessera::data {

class ImageInput {
 public:
  struct Options {
    int workers = 1;    // threads that read and prepare images
    int64_t depth = 3;  // batches in host memory, including those in use; at least 3
  };
  /// Allocates up to `depth` batches on the host and, if the default device is a GPU, one batch on
  /// the GPU. Each batch takes ImageBatches::bytes bytes in Category::activations.
  ImageInput(std::shared_ptr<const ImageBatches> batches, const Options& options);

  /// Loads batch `number`, which must be the next batch. On a GPU, launches a copy. The stream runs
  /// the copy after the kernels that read the previous batch. Throws as ImageSet::read does.
  void load(int64_t number);

  const Tensor& images() const { return batch_.images; }  // (B, H, W, C)
  const Tensor& labels() const { return batch_.labels; }  // i32 (B)
  /// Returns how long load() has waited in total for images that were not ready.
  int64_t waited_ns() const { return queue_.waited_ns(); }

 private:
  std::shared_ptr<const ImageBatches> batches_;
  ImageBatch device_;  // the input on a GPU; undefined on the CPU
  ImageBatch batch_;
  ImageQueue queue_;
  /// One event for each batch that is taken from the queue and not released, oldest first. The
  /// event marks the end of the batch's copy to the GPU. Empty on the CPU.
  std::deque<cuda::Event> copied_;
};

}  // namespace tessera::data
