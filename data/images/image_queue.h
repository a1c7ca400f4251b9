// Batches of images, prepared by threads of its own ahead of who takes them, in a few slots of
// memory that are used again and again.
//
//   ImageQueue queue(batches, {.workers = 2});
//   const ImageBatch batch = queue.take();    // the next one, as soon as it is ready
//   ...
//   queue.release();                          // the slot of the oldest one that was taken
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/images/image_batches.h"

namespace tessera::data {

struct ImageQueueOptions {
  int workers = 1;
  int64_t depth = 3;  // slots, those that are taken among them
  bool pinned = false;
};

/// take and release are for one thread. May be destroyed at any time.
class ImageQueue {
 public:
  ImageQueue(std::shared_ptr<const ImageBatches> batches, const ImageQueueOptions& options);

  /// Valid until it is released. Throws what preparing its first bad image threw, then and again.
  ImageBatch take();
  void release();
  int64_t taken() const { return taken_; }
  /// Batches that are taken and not released.
  int64_t held() const { return taken_ - released_; }
  /// How long take() has waited in all.
  int64_t waited_ns() const { return waited_ns_; }

 private:
  struct Slot {
    ImageBatch batch;
    int64_t left = 0;  // images to be prepared
    std::exception_ptr error = {};
    int64_t bad_row = 0;  // whose error it is: the first one, whichever thread was sooner
  };
  /// Some images of one batch: what a worker takes at a time.
  struct Work {
    int64_t batch = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };

  Slot& slot_of(int64_t batch) { return slots_[static_cast<size_t>(batch) % slots_.size()]; }
  void work(const std::stop_token& stop);
  bool has_work() const;
  Work next_work();
  void prepare(const Work& work, ImageMemory& memory);
  void finish(const Work& work, std::exception_ptr error, int64_t bad_row);

  std::shared_ptr<const ImageBatches> batches_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Slot> slots_;
  int64_t next_batch_ = 0;  // that workers take images of
  int64_t next_row_ = 0;
  int64_t released_ = 0;
  int64_t taken_ = 0;
  int64_t waited_ns_ = 0;
  std::vector<std::jthread> workers_;  // last: they are stopped before what they use is gone
};

}  // namespace tessera::data
