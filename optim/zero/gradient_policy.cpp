#include "optim/zero/gradient_policy.h"

#include <algorithm>
#include <utility>

namespace tessera::optim {

FullGradients::FullGradients(const Partition& partition, dist::Communicator& communicator)
    : partition_(partition),
      flat_(flat_buffer(communicator, partition.layout().flat_elements(), partition.dtype(),
                        Category::gradients)),
      works_(static_cast<size_t>(partition.buckets())) {}

Tensor FullGradients::open(int bucket) {
  // The previous micro-step's gradient may still be on its way to its owners.
  works_[static_cast<size_t>(bucket)].wait();
  return partition_.bucket_of(flat_, bucket);
}

void FullGradients::sent(int bucket, const dist::Work& work) {
  works_[static_cast<size_t>(bucket)] = work;
}

void FullGradients::settle() {
  for (dist::Work& work : works_) std::exchange(work, {}).wait();
}

RingGradients::RingGradients(const Partition& partition, dist::Communicator& communicator)
    : partition_(partition), communicator_(communicator) {
  int unshared = 0;
  for (int b = 0; b < partition.buckets(); ++b) {
    own_slot_.push_back(partition.bucket(b).shared ? static_cast<int>(own_.size()) : -1);
    if (partition.bucket(b).shared) {
      own_.push_back(new_slot(partition.bucket(b).elements));
    } else {
      ++unshared;
    }
  }
  const int slots = std::min(unshared, first_slots);
  const int64_t elements = partition.layout().largest_unshared_bucket();
  for (int i = 0; i < slots; ++i) ring_.push_back(new_slot(elements));
}

RingGradients::Slot RingGradients::new_slot(int64_t elements) {
  return {flat_buffer(communicator_, elements, partition_.dtype(), Category::gradients), {}, -1};
}

RingGradients::Slot& RingGradients::free_slot() {
  for (size_t i = 0; i < ring_.size(); ++i) {
    Slot& slot = ring_[(next_ + i) % ring_.size()];
    if (slot.bucket >= 0) continue;  // still filling
    next_ = (next_ + i + 1) % ring_.size();
    return slot;
  }
  const int64_t elements = partition_.layout().largest_unshared_bucket();
  ring_.push_back(new_slot(elements));
  return ring_.back();
}

Tensor RingGradients::claim(Slot& slot, int bucket) {
  slot.work.wait();  // the bucket that used the slot before has reached its owners
  slot.work = {};
  slot.bucket = bucket;
  return slot.memory.flat(0, partition_.bucket(bucket).elements);
}

Tensor RingGradients::open(int bucket) {
  const int own = own_slot_[static_cast<size_t>(bucket)];
  return claim(own >= 0 ? own_[static_cast<size_t>(own)] : free_slot(), bucket);
}

void RingGradients::sent(int bucket, const dist::Work& work) {
  for (auto* slots : {&ring_, &own_}) {
    for (Slot& slot : *slots) {
      if (slot.bucket != bucket) continue;
      slot.work = work;
      slot.bucket = -1;
    }
  }
}

void RingGradients::settle() {
  for (auto* slots : {&ring_, &own_}) {
    for (Slot& slot : *slots) std::exchange(slot.work, {}).wait();
  }
}

}  // namespace tessera::optim
