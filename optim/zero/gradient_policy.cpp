#include "optim/zero/gradient_policy.h"

#include <algorithm>
#include <utility>

#include "core/context.h"
#include "dist/fold.h"

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

ReductionPolicy::Sent OrderedReduction::send(int bucket, const Tensor& gradient,
                                             const MicroStep& micro_step) {
  const Tensor sum = partition_.shard_of(partition_.accumulator(), bucket);
  // Up to here the sum has begun: what lies beyond has had no contribution yet in this step.
  int64_t begun = micro_step.index == 0 ? 0 : sum.elements();
  auto fold = [sum, begun](int, int64_t begin, const Tensor& chunk) mutable {
    const int64_t end = begin + chunk.elements();
    TESSERA_CHECK(begin >= begun || end <= begun,
                  "optimizer: a chunk [{}, {}) came across the limit {} of those before it", begin,
                  end, begun);
    kernels::fold(current_context(sum.device()), sum.flat(begin, end), chunk, begin >= begun);
    begun = std::max(begun, end);
  };
  const dist::Work work =
      communicator_.exchange(gradient, static_cast<int>(micro_step.contributors), std::move(fold),
                             {dist::Traffic::gradients, bucket});
  return {.left = work, .arrived = work};
}

FastReduction::FastReduction(const Partition& partition, dist::Communicator& communicator)
    : partition_(partition),
      communicator_(communicator),
      scattered_(flat_buffer(communicator, partition.largest_bucket() / communicator.size(),
                             DType::f32, Category::communication)) {}

ReductionPolicy::Sent FastReduction::send(int bucket, const Tensor& gradient,
                                          const MicroStep& micro_step) {
  const dist::Work work = reduce_scatter(bucket, gradient, micro_step);
  return {.left = work, .arrived = work};
}

dist::Work FastReduction::reduce_scatter(int bucket, const Tensor& gradient,
                                         const MicroStep& micro_step) {
  const Tensor sum = partition_.shard_of(partition_.accumulator(), bucket);
  const auto contributors = static_cast<int>(micro_step.contributors);
  const dist::Call call{dist::Traffic::gradients, bucket};
  const bool first = micro_step.index == 0;
  if (first && sum.dtype() == DType::f32) {
    return communicator_.reduce_scatter(sum, gradient, contributors, call);
  }
  const Tensor scattered = scattered_.flat(0, sum.elements());
  communicator_.reduce_scatter(scattered, gradient, contributors, call);
  // In the communicator's order, so after the reduce-scatter and before the next one's writes.
  return communicator_.run([sum, scattered, first] {
    kernels::fold(current_context(sum.device()), sum, scattered, first);
  });
}

void LocalSums::begin(const MicroStep& micro_step) {
  if (micro_step.count == 1 || sums_.defined()) return;
  sums_ = flat_buffer(communicator_, partition_.layout().flat_elements(),
                      partition_.accumulator().dtype(), Category::gradients);
}

ReductionPolicy::Sent LocalSums::send(int bucket, const Tensor& gradient,
                                      const MicroStep& micro_step) {
  if (!sums_.defined()) return of_sums_->send(bucket, gradient, micro_step);
  const Tensor sum = partition_.bucket_of(sums_, bucket);
  if (micro_step.contributes) {
    kernels::fold(current_context(gradient.device()), sum, gradient, micro_step.index == 0);
  }
  if (!micro_step.last()) return {};
  // The sums are reduced once a step, as if it had one micro-step: of the ranks that have any.
  MicroStep once = micro_step;
  once.index = 0;
  once.contributors = std::min<int64_t>(communicator_.size(), micro_step.micro_batches);
  return {.left = {}, .arrived = of_sums_->send(bucket, sum, once).arrived};
}

}  // namespace tessera::optim
