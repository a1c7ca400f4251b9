#include "core/error.h"
#include "course/5_zero2/zero2.h"

namespace course {

// Buckets use slots 0 and 1 in turn: one slot fills while the other is sent. A tied parameter gets
// gradients during all of backward, so its bucket has its own slot.
int Zero2::slot_of(int bucket) const {
  int turn = 0;
  int tied = 2;
  for (int b = 0; b < bucket; ++b) {
    if (layout_.buckets()[static_cast<size_t>(b)].shared) {
      ++tied;
    } else {
      turn = 1 - turn;
    }
  }
  return layout_.buckets()[static_cast<size_t>(bucket)].shared ? tied : turn;
}

void Zero2::allocate_gradients() {
  sums_ = f32_buffer(layout_.shard_elements(), Category::gradients);
  int64_t largest = 0;
  std::vector<int64_t> tied;
  for (const dist::Bucket& bucket : layout_.buckets()) {
    if (bucket.shared) {
      tied.push_back(bucket.elements);
    } else {
      largest = std::max(largest, bucket.elements);
    }
  }
  for (int i = 0; i < 2; ++i) slots_.push_back({buffer(largest, Category::gradients)});
  for (const int64_t elements : tied) slots_.push_back({buffer(elements, Category::gradients)});
}

Tensor Zero2::open(int bucket) {
  Slot& slot = slots_[static_cast<size_t>(slot_of(bucket))];
  if (slot.bucket >= 0) {
    TESSERA_CHECK(slot.bucket == bucket || !filling(slot.bucket),
                  "bucket {} needs the memory of bucket {}, which is not complete", bucket,
                  slot.bucket);
    sent_[static_cast<size_t>(slot.bucket)].wait();
  }
  slot.bucket = bucket;
  return slot.memory.flat(0, layout_.buckets()[static_cast<size_t>(bucket)].elements);
}

}  // namespace course
