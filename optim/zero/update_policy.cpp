#include "optim/zero/update_policy.h"

#include <algorithm>

#include "core/ops/copy.h"
#include "core/ops/fill.h"

namespace tessera::optim {

UpdatePolicy::UpdatePolicy(const Partition& partition, UpdateRule rule,
                           std::unique_ptr<UpdatePlace> place, int64_t elements)
    : partition_(partition), rule_(std::move(rule)), place_(std::move(place)) {
  for (size_t i = 0; i < rule_.state_names().size(); ++i) {
    state_.push_back(place_->zeros(elements));
  }
  // f32 values on the device of the update are updated in place. All other values need master
  // weights.
  if (partition.dtype() != DType::f32 || !place_->has_values()) masters_ = place_->zeros(elements);
}

void UpdatePolicy::fill(const nn::ParameterSource& source) {
  if (!masters_.defined()) return;
  for (int b = 0; b < partition_.buckets(); ++b) {
    partition_.fill(range_of(masters_, b), b, range(b), source);
  }
}

void UpdatePolicy::reset_state() {
  for (const Tensor& state : state_) {
    if (state.elements() > 0) kernels::fill(current_context(state.device()), state, 0.0f);
  }
}

void UpdatePolicy::fill_state(size_t index, const nn::ParameterSource& source) {
  for (int b = 0; b < partition_.buckets(); ++b) {
    partition_.fill(range_of(state_[index], b), b, range(b), source);
  }
}

Tensor UpdatePolicy::weights(int bucket) const {
  return masters_.defined() ? range_of(masters_, bucket) : values(bucket);
}

Tensor UpdatePolicy::values(int bucket) const {
  const dist::Range held = partition_.held_range(bucket);
  const dist::Range own = range(bucket);
  return partition_.held_values(bucket).flat(own.begin - held.begin, own.end - held.begin);
}

std::vector<Tensor> UpdatePolicy::state(int bucket) const {
  std::vector<Tensor> list;
  for (const Tensor& state : state_) list.push_back(range_of(state, bucket));
  return list;
}

Tensor UpdatePolicy::copied_sums(int bucket) {
  const bool first = bucket == partition_.buckets() - 1;
  // If place_->ahead() is true, the previous call has started this bucket's copy.
  if (first || !place_->ahead()) place_->start(bucket, sums(bucket));
  const Tensor here = place_->take(bucket);
  // sums(bucket - 1) may start a gather that overwrites this bucket's gradient sums. So it may be
  // called only after take(), which waits until these sums have been copied.
  if (bucket > 0 && place_->ahead()) place_->start(bucket - 1, sums(bucket - 1));
  return here;
}

void UpdatePolicy::update(int bucket, const UpdateChoice& choice) {
  const Tensor gradients = copied_sums(bucket);
  const Tensor weights = this->weights(bucket);
  const std::vector<Tensor> state = this->state(bucket);
  rule_.update(current_context(place_->device()), {weights, gradients, state, choice.scalars},
               partition_.segments(bucket, range(bucket), choice.hyper_of), choice.hypers);
  if (masters_.defined()) place_->round(bucket, weights, values(bucket));
}

ReplicatedUpdate::ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator,
                                   UpdateRule rule, std::unique_ptr<UpdatePlace> place,
                                   BucketMemory& gradients)
    : UpdatePolicy(partition, std::move(rule), std::move(place),
                   partition.layout().flat_elements()),
      communicator_(communicator),
      gathered_(static_cast<size_t>(partition.buckets())) {
  const DType dtype = partition.sums().dtype();
  if (gradients.dtype() == dtype) {
    gradients_ = &gradients;
    return;
  }
  // Sums of another dtype than the gradients do not fit into the gradient buffer. They get slots
  // for two buckets: one is gathered while the other is updated.
  const int64_t largest = partition.largest_bucket();
  for (int i = 0; i < std::min(slot_count, partition.buckets()); ++i) {
    slots_.push_back(flat_buffer(communicator, largest, dtype, Category::gradients));
  }
}

Tensor ReplicatedUpdate::range_of(const Tensor& flat, int bucket) const {
  return partition_.bucket_of(flat, bucket);
}

Tensor ReplicatedUpdate::target(int bucket) const {
  if (gradients_ != nullptr) return gradients_->of(bucket);
  const Tensor& slot = slots_[static_cast<size_t>(bucket) % slots_.size()];
  return slot.flat(0, partition_.bucket(bucket).elements);
}

void ReplicatedUpdate::gather(int bucket) {
  const Tensor whole = target(bucket);
  const dist::Range own = partition_.own_range(bucket);
  // Each rank has only the sum of its shard. The all-gather fills in the sums of other shards.
  kernels::copy(current_context(whole.device()), whole.flat(own.begin, own.end),
                partition_.sums().of(bucket));
  gathered_[static_cast<size_t>(bucket)] =
      communicator_.all_gather(whole, partition_.call(dist::Traffic::gradients, bucket));
}

void ReplicatedUpdate::prepare(int bucket) {
  // In gradients_ every bucket has memory, so its gather starts now. With slots, only the last
  // buckets, which are updated first, get a slot now. sums() starts the gathers of the other
  // buckets as slots become free.
  const bool room =
      gradients_ != nullptr || bucket >= partition_.buckets() - static_cast<int>(slots_.size());
  if (room) gather(bucket);
}

Tensor ReplicatedUpdate::sums(int bucket) {
  // The sums of bucket + 1 are not needed any more: they have been read by the update, or copied to
  // the host. So their slot is free for bucket `next`.
  const int freed = bucket + 1;
  const int next = freed - static_cast<int>(slots_.size());
  if (!slots_.empty() && freed < partition_.buckets() && next >= 0) gather(next);
  gathered_[static_cast<size_t>(bucket)].wait();
  return target(bucket);
}

ShardedUpdate::ShardedUpdate(const Partition& partition, UpdateRule rule,
                             std::unique_ptr<UpdatePlace> place)
    : UpdatePolicy(partition, std::move(rule), std::move(place),
                   partition.layout().shard_elements()) {}

Tensor ShardedUpdate::range_of(const Tensor& flat, int bucket) const {
  return partition_.shard_of(flat, bucket);
}

Tensor ShardedUpdate::sums(int bucket) {
  return partition_.sums().of(bucket);
}

}  // namespace tessera::optim
