#include "optim/zero/gradient_policy.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/context.h"
#include "dist/fold.h"

namespace tessera::optim {
namespace {

std::vector<int64_t> sizes_of_buckets(const Partition& partition) {
  std::vector<int64_t> sizes;
  for (const dist::Bucket& bucket : partition.layout().buckets()) sizes.push_back(bucket.elements);
  return sizes;
}

}  // namespace

FullGradients::FullGradients(const Partition& partition, dist::Communicator& communicator)
    : memory_(communicator, sizes_of_buckets(partition), partition.dtype()),
      works_(static_cast<size_t>(partition.buckets())) {}

Tensor FullGradients::open(int bucket) {
  // The communicator may still send the previous micro-step's gradient from this memory.
  works_[static_cast<size_t>(bucket)].wait();
  return memory_.take(bucket);
}

void FullGradients::sent(int bucket, const dist::Work& work) {
  works_[static_cast<size_t>(bucket)] = work;
}

void FullGradients::wait_for_all() {
  for (dist::Work& work : works_) std::exchange(work, {}).wait();
}

void FullGradients::end_step() {
  wait_for_all();
  memory_.free();
}

RingGradients::RingGradients(const Partition& partition, dist::Communicator& communicator)
    : partition_(partition),
      communicator_(communicator),
      end_of_(static_cast<size_t>(partition.buckets())) {
  std::vector<int> order(end_of_.size());
  std::iota(order.begin(), order.end(), 0);
  for (const int b : order) {
    const dist::Bucket& bucket = partition.bucket(b);
    // The bucket of a tied parameter is opened first and completed last. In the ring, this bucket
    // would occupy one end during all of backward.
    own_slot_.push_back(bucket.shared ? static_cast<int>(own_.size()) : -1);
    if (bucket.shared) own_.push_back(new_slot(bucket.elements));
  }
  ring_ = flat_buffer(communicator, take_turns(order), partition.dtype(), Category::gradients);
}

// Neighbours in `order` get opposite ends, so that one bucket fills while the other is in flight.
// The ring must hold the largest pair of neighbours.
int64_t RingGradients::take_turns(const std::vector<int>& order) {
  int64_t neighbours = 0;
  int64_t before = 0;
  size_t next_end = 0;
  for (const int b : order) {
    const dist::Bucket& bucket = partition_.bucket(b);
    if (bucket.shared) continue;
    end_of_[static_cast<size_t>(b)] = next_end;
    neighbours = std::max(neighbours, before + bucket.elements);
    before = bucket.elements;
    next_end = 1 - next_end;
  }
  return neighbours;
}

void RingGradients::follow(const std::vector<int>& order) {
  const int64_t neighbours = take_turns(order);
  if (beside_.empty() && neighbours <= ring_.elements()) return;
  // Waits until no collective reads the ring or a slot beside the ring. The code below frees these
  // slots and, if the ring is too small, the ring.
  wait_for_all();
  beside_.clear();
  if (neighbours <= ring_.elements()) return;
  ends_ = {};
  ring_ = {};  // the old ring is freed before the larger one is allocated
  ring_ = flat_buffer(communicator_, neighbours, partition_.dtype(), Category::gradients);
}

RingGradients::Slot RingGradients::new_slot(int64_t elements) {
  return {flat_buffer(communicator_, elements, partition_.dtype(), Category::gradients), {}, -1};
}

Tensor RingGradients::claim(Slot& slot, int bucket, int64_t elements) {
  std::exchange(slot.work, {}).wait();  // waits until the slot's previous bucket is sent
  slot.bucket = bucket;
  return slot.memory.flat(0, elements);
}

std::optional<Tensor> RingGradients::place(size_t end, int bucket) {
  const int64_t elements = partition_.bucket(bucket).elements;
  const int64_t begin = end == 0 ? 0 : ring_.elements() - elements;
  const dist::Range range{begin, begin + elements};
  End& here = ends_[end];
  End& there = ends_[1 - end];
  const bool overlap = there.range.begin < range.end && range.begin < there.range.end;
  // Waiting for a bucket that still fills would deadlock, because this thread fills it.
  if (here.bucket >= 0 || (overlap && there.bucket >= 0)) return std::nullopt;
  // It is enough to wait for the last bucket at each end, because that bucket waited for the
  // earlier buckets at its end.
  std::exchange(here.work, {}).wait();
  if (overlap) std::exchange(there.work, {}).wait();
  here = {range, {}, bucket};
  return ring_.flat(range.begin, range.end);
}

RingGradients::Slot& RingGradients::free_slot(int64_t elements) {
  for (Slot& slot : beside_) {
    if (slot.bucket < 0 && slot.memory.elements() >= elements) return slot;
  }
  beside_.push_back(new_slot(elements));
  return beside_.back();
}

Tensor RingGradients::open(int bucket) {
  const int64_t elements = partition_.bucket(bucket).elements;
  const int own = own_slot_[static_cast<size_t>(bucket)];
  if (own >= 0) return claim(own_[static_cast<size_t>(own)], bucket, elements);
  const size_t end = end_of_[static_cast<size_t>(bucket)];
  // Tries the bucket's assigned end first, then the other end, then a slot beside the ring.
  if (const auto memory = place(end, bucket)) return *memory;
  if (const auto memory = place(1 - end, bucket)) return *memory;
  return claim(free_slot(elements), bucket, elements);
}

void RingGradients::sent(int bucket, const dist::Work& work) {
  // The bucket has stopped filling its memory. The next user of the memory must wait for `work`.
  const auto leaves = [bucket, &work](auto& place) {
    if (place.bucket != bucket) return;
    place.work = work;
    place.bucket = -1;
  };
  for (End& end : ends_) leaves(end);
  for (Slot& slot : beside_) leaves(slot);
  for (Slot& slot : own_) leaves(slot);
}

void RingGradients::wait_for_all() {
  for (End& end : ends_) std::exchange(end.work, {}).wait();
  for (Slot& slot : beside_) std::exchange(slot.work, {}).wait();
  for (Slot& slot : own_) std::exchange(slot.work, {}).wait();
}

bool gradients_in_sums(const Partition& partition, const dist::Communicator& communicator,
                       const ZeroOptions& options) {
  return communicator.size() == 1 && communicator.device().is_cpu() &&
         partition.dtype() == partition.sums().dtype() && options.reduction == Reduction::ordered &&
         !options.no_sync;
}

void GradientsInSums::begin(const MicroStep& micro_step) {
  first_ = micro_step.index == 0;
  if (first_) return;
  if (!later_) {
    later_ = make_later_();
    if (!order_.empty()) later_->follow(order_);
  }
  later_->begin(micro_step);
}

Tensor GradientsInSums::open(int bucket) {
  return first_ ? partition_.sums().take(bucket) : later_->open(bucket);
}

void GradientsInSums::sent(int bucket, const dist::Work& work) {
  if (!first_) later_->sent(bucket, work);
}

void GradientsInSums::wait_for_all() {
  if (later_) later_->wait_for_all();
}

void GradientsInSums::end_step() {
  if (later_) later_->end_step();
}

void GradientsInSums::follow(const std::vector<int>& order) {
  order_ = order;
  if (later_) later_->follow(order);
}

ReductionPolicy::Sent OrderedReduction::send(int bucket, const Tensor& gradient,
                                             const MicroStep& micro_step) {
  const Tensor sum = partition_.sums().take(bucket);
  // Elements below `begun` already have a contribution in this step, so the next contribution is
  // added to them. The first contribution of a step overwrites the previous step's sum.
  int64_t begun = micro_step.index == 0 ? 0 : sum.elements();
  auto fold = [sum, begun](int, int64_t begin, const Tensor& chunk) mutable {
    const int64_t end = begin + chunk.elements();
    TESSERA_CHECK(begin >= begun || end <= begun,
                  "optimizer: a chunk [{}, {}) crosses {}, the end of the chunks before it", begin,
                  end, begun);
    const Tensor part = sum.flat(begin, end);
    const bool first = begin >= begun;
    begun = std::max(begun, end);
    // With GradientsInSums, the first gradient is already in the sum, so it is not folded. A fold
    // would only turn -0.0 into +0.0, and block_square_sums does so later for the whole sum.
    if (first && part.raw() == chunk.raw()) return;
    kernels::fold(current_context(sum.device()), part, chunk, first);
  };
  // Each element's contributions arrive in ascending order of rank, which is the order of
  // micro-batches. The lambda holds copies, because it may run on the communicator's thread after
  // this function has returned.
  const dist::Work work =
      communicator_.exchange(gradient, static_cast<int>(micro_step.contributors), std::move(fold),
                             partition_.call(dist::Traffic::gradients, bucket));
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
  const Tensor sum = partition_.sums().take(bucket);
  const auto contributors = static_cast<int>(micro_step.contributors);
  const dist::Call call = partition_.call(dist::Traffic::gradients, bucket);
  const bool first = micro_step.index == 0;
  // The first reduction of a step overwrites the sum. The result of a reduce-scatter is f32, so it
  // can be written directly into an f32 sum.
  if (first && sum.dtype() == DType::f32) {
    return communicator_.reduce_scatter(sum, gradient, contributors, call);
  }
  const Tensor scattered = scattered_.flat(0, sum.elements());
  communicator_.reduce_scatter(scattered, gradient, contributors, call);
  // The communicator runs the fold after this reduce-scatter and before the next one, which
  // overwrites `scattered`.
  return communicator_.run([sum, scattered, first] {
    kernels::fold(current_context(sum.device()), sum, scattered, first);
  });
}

void LocalSums::begin(const MicroStep& micro_step) {
  // A step with one micro-step needs no local sums. The first step with several micro-steps
  // allocates the sums, which are kept for the rest of the run.
  if (micro_step.count == 1 || sums_.defined()) return;
  sums_ = flat_buffer(communicator_, partition_.layout().flat_elements(), partition_.sums().dtype(),
                      Category::gradients);
}

ReductionPolicy::Sent LocalSums::send(int bucket, const Tensor& gradient,
                                      const MicroStep& micro_step) {
  if (!sums_.defined()) return reduction_->send(bucket, gradient, micro_step);
  const Tensor sum = partition_.bucket_of(sums_, bucket);
  // A rank that only repeats another rank's micro-batch must not add this gradient a second time.
  if (micro_step.contributes) {
    kernels::fold(current_context(gradient.device()), sum, gradient, micro_step.index == 0);
  }
  // The gradient's memory may be reused without a wait, because later gradients are written to it
  // in the same stream, after this addition.
  if (!micro_step.last()) return {};
  // The sums are reduced once per step, as in a step with one micro-step. Every rank that has had a
  // micro-batch in the step contributes.
  MicroStep once = micro_step;
  once.index = 0;
  once.contributors = std::min<int64_t>(communicator_.size(), micro_step.micro_batches);
  return {.left = {}, .arrived = reduction_->send(bucket, sum, once).arrived};
}

}  // namespace tessera::optim
