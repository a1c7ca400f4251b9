#include "data/images/image_batches.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/error.h"
#include "core/pinned_tensor.h"
#include "core/random.h"

namespace tessera::data {
namespace {

Shape batch_shape(int64_t images, const ImageShape& shape) {
  return {images, shape.height, shape.width, shape.channels};
}

}  // namespace

ImageBatch ImageBatches::allocate(int64_t images, bool pinned) const {
  const Shape shape = batch_shape(images, transform_.options().shape);
  const DType dtype = transform_.options().dtype;
  if (pinned) {
    return {pinned_tensor(shape, dtype, Category::activations),
            pinned_tensor({images}, DType::i32, Category::activations)};
  }
  return {Tensor::empty(shape, dtype, Device{}), Tensor::empty({images}, DType::i32, Device{})};
}

ImageBatch ImageBatches::allocate_input(int64_t images) const {
  const ImageTransformOptions& options = transform_.options();
  return {Tensor::empty(batch_shape(images, options.shape), options.dtype),
          Tensor::empty({images}, DType::i32)};
}

int64_t ImageBatches::bytes(int64_t images, const ImageShape& shape, DType dtype) {
  return images * (shape.elements() * dtype_size(dtype) + dtype_size(DType::i32));
}

void* ImageBatches::place_of(int64_t row, const ImageBatch& into) const {
  const ImageTransformOptions& options = transform_.options();
  return static_cast<std::byte*>(into.images.raw()) +
         row * options.shape.elements() * dtype_size(options.dtype);
}

TrainingBatches::TrainingBatches(std::shared_ptr<const ImageSet> set,
                                 const ImageTransformOptions& transform, const Schedule& schedule)
    : ImageBatches(std::move(set), transform), schedule_(schedule) {
  schedule_.batch.validate();
  steps_per_epoch_ = this->set().size() / schedule_.batch.global;
  if (steps_per_epoch_ < 1) {
    fail_input("{} images to train on do not fill a global batch of {}: give a smaller batch",
               this->set().size(), schedule_.batch.global);
  }
}

int64_t TrainingBatches::index_of(int64_t step, int64_t sample) const {
  TESSERA_CHECK(sample >= 0 && sample < schedule_.batch.global,
                "images: sample {} of a step is asked for, but the global batch of TrainingBatches "
                "has {} samples",
                sample, schedule_.batch.global);
  const int64_t place = step % steps_per_epoch_ * schedule_.batch.global + sample;
  return static_cast<int64_t>(permuted(
      static_cast<uint64_t>(place), static_cast<uint64_t>(set().size()),
      transform().options().seed, "order of an epoch", static_cast<uint64_t>(epoch(step))));
}

int64_t TrainingBatches::count() const {
  return (schedule_.steps - schedule_.first_step) * schedule_.batch.micro_steps(schedule_.ranks);
}

int64_t TrainingBatches::micro_batch(int64_t micro_step) const {
  // A rank without a micro-batch of its own repeats the step's last micro-batch
  // (core/micro_batch.h).
  return std::min(micro_step * schedule_.ranks + schedule_.rank,
                  schedule_.batch.micro_batches() - 1);
}

int64_t TrainingBatches::number_of(const MicroBatch& micro) const {
  TESSERA_CHECK(micro.index == micro_batch(micro.micro_step),
                "images: micro-batch {} in micro-step {} of rank {} of {}, expected {}",
                micro.index, micro.micro_step, schedule_.rank, schedule_.ranks,
                micro_batch(micro.micro_step));
  TESSERA_CHECK(micro.samples == schedule_.batch.micro,
                "images: a micro-batch has {} samples, but the micro-batches of TrainingBatches "
                "have {}",
                micro.samples, schedule_.batch.micro);
  return (micro.step - schedule_.first_step) * schedule_.batch.micro_steps(schedule_.ranks) +
         micro.micro_step;
}

void TrainingBatches::prepare(int64_t batch, int64_t row, ImageMemory& memory,
                              const ImageBatch& into) const {
  const int64_t micro_steps = schedule_.batch.micro_steps(schedule_.ranks);
  const int64_t step = schedule_.first_step + batch / micro_steps;
  const int64_t first = micro_batch(batch % micro_steps) * schedule_.batch.micro;
  prepare_sample(step, first + row, row, memory, into);
}

void TrainingBatches::prepare_sample(int64_t step, int64_t sample, int64_t row, ImageMemory& memory,
                                     const ImageBatch& into) const {
  const int64_t index = index_of(step, sample);
  const ImageView image = set().read(index, memory);
  transform().train(image, epoch(step), index, memory, place_of(row, into));
  into.labels.data<int32_t>()[row] = set().label(index);
}

ImageBatch TrainingBatches::read(const MicroBatch& micro) const {
  const ImageBatch batch = allocate(micro.samples, false);
  ImageMemory memory;
  for (int64_t row = 0; row < micro.samples; ++row) {
    prepare_sample(micro.step, micro.first_sample + row, row, memory, batch);
  }
  return {batch.images.to(default_device()), batch.labels.to(default_device())};
}

EvaluationBatches::EvaluationBatches(std::shared_ptr<const ImageSet> set,
                                     const ImageTransformOptions& transform, const Share& share)
    : ImageBatches(std::move(set), transform), share_(share) {
  TESSERA_CHECK(share.size >= 1, "images: batches of {}, expected at least 1", share.size);
  total_ = (this->set().size() + share.size - 1) / share.size;
}

int64_t EvaluationBatches::first_image(int64_t batch) const {
  return std::min(number_of(batch), total_ - 1) * share_.size;
}

int64_t EvaluationBatches::images_in(int64_t batch) const {
  return std::min(share_.size, set().size() - first_image(batch));
}

int64_t EvaluationBatches::most_images() const { return std::min(share_.size, set().size()); }

void EvaluationBatches::prepare(int64_t batch, int64_t row, ImageMemory& memory,
                                const ImageBatch& into) const {
  const int64_t index = first_image(batch) + row;
  transform().evaluate(set().read(index, memory), memory, place_of(row, into));
  into.labels.data<int32_t>()[row] = set().label(index);
}

}  // namespace tessera::data
