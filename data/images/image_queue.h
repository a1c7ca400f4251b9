// Prepares batches of images ahead of their use, on worker threads, in a few slots of memory that
// are reused.
//
//   ImageQueue queue(batches, {.workers = 2});
//   const ImageBatch batch = queue.take();    // waits until the next batch is ready
//   ...
//   queue.release();                          // frees the slot of the oldest taken batch
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
  int64_t depth = 3;  // slots, including those that are taken
  bool pinned = false;
};

/// take() and release() must be called from the same thread. The queue may be destroyed before all
/// batches are taken and released.
class ImageQueue {
 public:
  ImageQueue(std::shared_ptr<const ImageBatches> batches, const ImageQueueOptions& options);

  /// Waits for the next batch and returns it. The batch is valid until it is released. If images of
  /// the batch cannot be prepared, throws the error of the first such image. All later calls then
  /// throw this error too.
  ImageBatch take();
  /// Frees the slot of the oldest batch that is taken.
  void release();
  int64_t taken() const { return taken_; }
  /// Returns the number of batches that are taken and not released.
  int64_t held() const { return taken_ - released_; }
  /// Returns how long take() has waited in total.
  int64_t waited_ns() const { return waited_ns_; }

 private:
  struct Slot {
    ImageBatch batch;
    int64_t left = 0;  // images that are not prepared yet
    std::exception_ptr error = {};
    int64_t bad_row = 0;  // the lowest row that cannot be prepared; `error` is its error
  };
  /// The unit of work that a worker takes: rows [begin, end) of a batch.
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
  int64_t next_batch_ = 0;  // the batch whose images workers take next
  int64_t next_row_ = 0;
  int64_t released_ = 0;
  int64_t taken_ = 0;
  int64_t waited_ns_ = 0;
  std::vector<std::jthread> workers_;  // last, so that threads end before the slots are destroyed
};

}  // namespace tessera::data
