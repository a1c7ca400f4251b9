// Where training and evaluation find the images of a batch, prepared ahead of the step. On a GPU
// they are in the same memory every time, which a graph needs (core/cuda.h).
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
    int64_t depth = 3;  // batches in memory of the host, the one in use among them; at least 3
  };
  /// On the default device. Holds `depth` batches on the host, and on a GPU one there (their bytes:
  /// ImageBatches::bytes), of the category activations.
  ImageInput(std::shared_ptr<const ImageBatches> batches, const Options& options);

  /// Goes on to the next batch, whose number must be `number`; behind what reads the one before.
  /// Throws InputError for an image that cannot be read.
  void load(int64_t number);

  const Tensor& images() const { return batch_.images; }  // (B, H, W, C)
  const Tensor& labels() const { return batch_.labels; }  // i32 (B)
  /// How long load() has waited in all for images that were not ready.
  int64_t waited_ns() const { return queue_.waited_ns(); }

 private:
  std::shared_ptr<const ImageBatches> batches_;
  ImageBatch device_;  // on a GPU
  ImageBatch batch_;
  ImageQueue queue_;
  std::deque<cuda::Event> copied_;  // of the batches that the GPU copies from the host
};

}  // namespace tessera::data
