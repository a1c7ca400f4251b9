// Chooses the images of a rank's batches, and turns these images into a model's input. ImageInput
// (image_input.h) prepares the batches ahead of the training steps that read them.
#pragma once

#include <cstdint>
#include <memory>

#include "core/micro_batch.h"
#include "core/tensor.h"
#include "data/images/augment.h"
#include "data/images/image_set.h"

namespace tessera::data {

struct ImageBatch {
  Tensor images;  // (B, H, W, C) in the transform's dtype
  Tensor labels;  // i32 (B)
};

/// The batches of one rank, numbered from 0 in the order in which the rank reads them.
class ImageBatches {
 public:
  ImageBatches(std::shared_ptr<const ImageSet> set, const ImageTransformOptions& transform)
      : set_(std::move(set)), transform_(transform) {}
  virtual ~ImageBatches() = default;

  virtual int64_t count() const = 0;
  virtual int64_t images_in(int64_t batch) const = 0;
  /// Returns the number of images in the largest batch, over the batches of all ranks.
  virtual int64_t most_images() const = 0;
  /// Writes image `row` of a batch, and the image's label, to row `row` of `into` in host memory.
  /// Safe to use from any thread.
  virtual void prepare(int64_t batch, int64_t row, ImageMemory& memory,
                       const ImageBatch& into) const = 0;

  /// Allocates host memory for `images` images. The memory must be pinned if cuda::copy will copy
  /// from it.
  ImageBatch allocate(int64_t images, bool pinned) const;
  /// Allocates memory for `images` images on the default device.
  ImageBatch allocate_input(int64_t images) const;
  /// Returns the bytes of a batch of `images` images and their labels, for a run's memory plan.
  static int64_t bytes(int64_t images, const ImageShape& shape, DType dtype);

 protected:
  const ImageSet& set() const { return *set_; }
  const ImageTransform& transform() const { return transform_; }
  /// Returns the address of image `row` in `into`.
  void* place_of(int64_t row, const ImageBatch& into) const;

 private:
  std::shared_ptr<const ImageSet> set_;
  ImageTransform transform_;
};

/// The micro-batches that one rank reads in a run. An epoch visits each image at most once, in an
/// order that depends on (seed, epoch). The last images of this order are left out if they do not
/// fill a step.
///
/// The images of a micro-batch and their augmentation do not depend on the rank. For a given set,
/// transform and batch size, they depend only on the seed, the step and the index of the
/// micro-batch in the step.
class TrainingBatches : public ImageBatches {
 public:
  struct Schedule {
    Batch batch = {};
    int64_t steps = 1;       // steps of the run, over all epochs
    int64_t first_step = 0;  // the first step that is read
    int64_t ranks = 1;
    int64_t rank = 0;
  };
  /// The transform's seed also determines the order of the images. Throws InputError if the images
  /// do not fill one step.
  TrainingBatches(std::shared_ptr<const ImageSet> set, const ImageTransformOptions& transform,
                  const Schedule& schedule);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t epoch(int64_t step) const { return step / steps_per_epoch_; }
  /// Returns the index, in the set, of the image that is sample `sample` of a step's global batch.
  /// Throws for a sample beyond the global batch.
  int64_t index_of(int64_t step, int64_t sample) const;
  /// Returns the position of a micro-batch among this rank's batches, from 0 in reading order.
  /// Throws for a micro-batch of another rank or of another size.
  int64_t number_of(const MicroBatch& micro) const;
  /// Prepares a micro-batch of any rank on the calling thread, and copies it to the default device.
  ImageBatch read(const MicroBatch& micro) const;

  int64_t count() const override;
  int64_t images_in(int64_t) const override { return schedule_.batch.micro; }
  int64_t most_images() const override { return schedule_.batch.micro; }
  void prepare(int64_t batch, int64_t row, ImageMemory& memory,
               const ImageBatch& into) const override;

 private:
  void prepare_sample(int64_t step, int64_t sample, int64_t row, ImageMemory& memory,
                      const ImageBatch& into) const;
  /// Returns the index, in the step, of the micro-batch that this rank reads in a micro-step
  /// (core/micro_batch.h).
  int64_t micro_batch(int64_t micro_step) const;

  Schedule schedule_;
  int64_t steps_per_epoch_ = 0;
};

/// One pass over a set in the set's order, in batches of `size`. The last batch may be smaller.
/// Rank r of N reads batches r, r + N, ... All ranks must run equally many forward passes, so a
/// rank that has one batch less than other ranks repeats the set's last batch.
class EvaluationBatches : public ImageBatches {
 public:
  struct Share {
    int64_t size = 1;  // images in a batch
    int64_t ranks = 1;
    int64_t rank = 0;
  };
  EvaluationBatches(std::shared_ptr<const ImageSet> set, const ImageTransformOptions& transform,
                    const Share& share);

  int64_t total() const { return total_; }  // batches of all ranks
  /// Converts this rank's batch number to a number among the batches of all ranks. A result of
  /// total() or more means that this rank repeats the set's last batch, number total() - 1.
  int64_t number_of(int64_t batch) const { return batch * share_.ranks + share_.rank; }

  int64_t count() const override { return (total_ + share_.ranks - 1) / share_.ranks; }
  int64_t images_in(int64_t batch) const override;
  int64_t most_images() const override;
  void prepare(int64_t batch, int64_t row, ImageMemory& memory,
               const ImageBatch& into) const override;

 private:
  int64_t first_image(int64_t batch) const;

  Share share_;
  int64_t total_ = 0;
};

}  // namespace tessera::data
