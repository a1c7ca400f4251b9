#include "data/images/image_input.h"

#include <utility>

#include "core/error.h"

namespace tessera::data {
namespace {

constexpr int64_t most_copies = 2;

void launch_copy(const Tensor& to, const Tensor& from) {
  cuda::copy(to.device().index, to.raw(), from.raw(), from.bytes());
}

}  // namespace

ImageInput::ImageInput(std::shared_ptr<const ImageBatches> batches, const Options& options)
    : batches_(std::move(batches)),
      queue_(batches_, {.workers = options.workers,
                        .depth = options.depth,
                        .pinned = !default_device().is_cpu()}) {
  TESSERA_CHECK(options.depth > most_copies,
                "images: {} batches ahead, expected at least {}", options.depth, most_copies + 1);
  if (!default_device().is_cpu()) device_ = batches_->allocate_input(batches_->most_images());
}

void ImageInput::load(int64_t number) {
  TESSERA_CHECK(number == queue_.taken(), "images: batch {} is asked for, the next one is {}",
                number, queue_.taken());
  if (!device_.images.defined()) {
    // On the CPU the model reads the batch directly from the queue's slot. When the next batch is
    // loaded, the model has finished with the previous slot.
    if (queue_.held() > 0) queue_.release();
    batch_ = queue_.take();
    return;
  }
  // A batch holds its slot of the queue until the batch has been copied to the GPU. If two batches
  // hold slots, the host waits for the copy of the older batch, and releases that batch's slot.
  if (queue_.held() == most_copies) {
    copied_.front().synchronize();
    copied_.pop_front();
    queue_.release();
  }
  const ImageBatch host = queue_.take();
  const int64_t images = batches_->images_in(number);
  batch_ = {device_.images.rows(0, images), device_.labels.rows(0, images)};
  launch_copy(batch_.images, host.images);
  launch_copy(batch_.labels, host.labels);
  copied_.emplace_back(batch_.images.device().index);
}

}  // namespace tessera::data
