#include "data/images/image_queue.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/trace.h"

namespace tessera::data {
namespace {

// Number of images that a worker takes at a time. With a larger number, fewer workers would share
// the work on one batch. With a smaller number, workers would wait for the mutex more often.
constexpr int64_t images_at_once = 8;

}  // namespace

ImageQueue::ImageQueue(std::shared_ptr<const ImageBatches> batches,
                       const ImageQueueOptions& options)
    : batches_(std::move(batches)) {
  TESSERA_CHECK(options.workers >= 1 && options.depth >= 1,
                "images: {} workers and {} batches ahead, expected at least 1", options.workers,
                options.depth);
  const int64_t count = std::min(options.depth, batches_->count());
  for (int64_t i = 0; i < count; ++i) {
    slots_.push_back({.batch = batches_->allocate(batches_->most_images(), options.pinned)});
  }
  for (int i = 0; i < options.workers; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

ImageBatch ImageQueue::take() {
  TESSERA_CHECK(taken_ < batches_->count(), "images: there is no batch {} of {}", taken_,
                batches_->count());
  TESSERA_CHECK(held() < std::ssize(slots_),
                "images: all {} batches ahead are taken, expected one to be released",
                slots_.size());
  std::unique_lock lock(mutex_);
  Slot& slot = slot_of(taken_);
  const auto ready = [&] { return next_batch_ > taken_ && slot.left == 0; };
  if (!ready()) {
    const trace::Scope scope("images", trace::Track::waiting);
    const int64_t begin_ns = trace::now_ns();
    changed_.wait(lock, ready);
    waited_ns_ += trace::now_ns() - begin_ns;
  }
  if (slot.error) std::rethrow_exception(slot.error);
  const int64_t images = batches_->images_in(taken_++);
  return {slot.batch.images.rows(0, images), slot.batch.labels.rows(0, images)};
}

void ImageQueue::release() {
  TESSERA_CHECK(held() > 0, "images: batch {} is released before it is taken", released_);
  {
    const std::lock_guard lock(mutex_);
    ++released_;
  }
  changed_.notify_all();
}

bool ImageQueue::has_work() const {
  return next_batch_ < batches_->count() && next_batch_ < released_ + std::ssize(slots_);
}

ImageQueue::Work ImageQueue::next_work() {
  const int64_t images = batches_->images_in(next_batch_);
  Slot& slot = slot_of(next_batch_);
  if (next_row_ == 0) {
    slot.left = images;
    slot.error = nullptr;
  }
  const Work work{next_batch_, next_row_, std::min(images, next_row_ + images_at_once)};
  next_row_ = work.end;
  if (next_row_ == images) {
    ++next_batch_;
    next_row_ = 0;
  }
  return work;
}

void ImageQueue::work(const std::stop_token& stop) {
  ImageMemory memory;
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return has_work(); }) || stop.stop_requested()) return;
      work = next_work();
    }
    prepare(work, memory);
  }
}

void ImageQueue::prepare(const Work& work, ImageMemory& memory) {
  std::exception_ptr error;
  int64_t row = work.begin;
  try {
    for (; row < work.end; ++row) {
      batches_->prepare(work.batch, row, memory, slot_of(work.batch).batch);
    }
  } catch (...) {
    error = std::current_exception();
  }
  finish(work, error, row);
}

void ImageQueue::finish(const Work& work, std::exception_ptr error, int64_t bad_row) {
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slot_of(work.batch);
    if (error && (!slot.error || bad_row < slot.bad_row)) {
      slot.error = std::move(error);
      slot.bad_row = bad_row;
    }
    slot.left -= work.end - work.begin;
  }
  changed_.notify_all();
}

}  // namespace tessera::data
