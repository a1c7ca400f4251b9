#include "optim/zero/update_policy.h"

#include <algorithm>

#include "core/ops/convert.h"
#include "core/ops/copy.h"

namespace tessera::optim {

UpdatePolicy::UpdatePolicy(const Partition& partition, dist::Communicator& communicator,
                           UpdateRule rule, const UpdateOptions& options)
    : partition_(partition),
      communicator_(communicator),
      rule_(std::move(rule)),
      options_(options) {
  const dist::ShardLayout& layout = partition.layout();
  const int64_t elements =
      options.replicated ? layout.flat_elements() : layout.shard_elements();
  const bool elsewhere = !(options.device == communicator.device());
  const auto zeros = [&] {
    return elsewhere ? host_zeros(elements, DType::f32, Category::optimizer_state,
                                  communicator.device())
                     : Tensor::zeros({elements}, DType::f32, options.device,
                                     Category::optimizer_state);
  };
  for (size_t i = 0; i < rule_.state_names().size(); ++i) state_.push_back(zeros());
  if (partition.dtype() != DType::f32 || elsewhere) masters_ = zeros();
  if (!elsewhere) return;
  int64_t largest = 0;
  for (int b = 0; b < partition.buckets(); ++b) largest = std::max(largest, range(b).size());
  crossing_.emplace(communicator.device(), partition.buckets(), largest,
                    partition.accumulator().dtype(), partition.dtype());
}

dist::Range UpdatePolicy::range(int bucket) const {
  return options_.replicated ? partition_.whole_range(bucket) : partition_.own_range(bucket);
}

Tensor UpdatePolicy::place(const Tensor& flat, int bucket) const {
  return options_.replicated ? partition_.bucket_of(flat, bucket)
                             : partition_.shard_of(flat, bucket);
}

void UpdatePolicy::fill(const ParameterSource& source) {
  if (!masters_.defined()) return;
  for (int b = 0; b < partition_.buckets(); ++b) {
    partition_.fill(place(masters_, b), b, range(b), source);
  }
}

Tensor UpdatePolicy::weights(int bucket) const {
  return masters_.defined() ? place(masters_, bucket) : values(bucket);
}

Tensor UpdatePolicy::values(int bucket) const {
  const dist::Range held = partition_.held_range(bucket);
  const dist::Range own = range(bucket);
  return partition_.held_values(bucket).flat(own.begin - held.begin, own.end - held.begin);
}

std::vector<Tensor> UpdatePolicy::state(int bucket) const {
  std::vector<Tensor> list;
  for (const Tensor& state : state_) list.push_back(place(state, bucket));
  return list;
}

Tensor UpdatePolicy::brought_sums(int bucket) {
  const bool first = bucket == partition_.buckets() - 1;
  if (first || !crossing_->ahead()) crossing_->bring(bucket, sums(bucket));
  const Tensor here = crossing_->sums(bucket, range(bucket).size());
  // Only now: to get the next sums may take the place where these have come from.
  if (bucket > 0 && crossing_->ahead()) crossing_->bring(bucket - 1, sums(bucket - 1));
  return here;
}

void UpdatePolicy::update(int bucket, const UpdateChoice& choice) {
  const Tensor gradients = crossing_ ? brought_sums(bucket) : sums(bucket);
  const Tensor weights = this->weights(bucket);
  const std::vector<Tensor> state = this->state(bucket);
  rule_.update(current_context(options_.device), {weights, gradients, state, choice.scalars},
               partition_.segments(bucket, range(bucket), choice.hyper_of), choice.hypers);
  if (!masters_.defined()) return;
  const Tensor values = this->values(bucket);
  const Tensor rounded = crossing_ ? crossing_->room(bucket, values.elements()) : values;
  kernels::convert(current_context(options_.device), rounded, weights);
  if (crossing_) crossing_->send(bucket, values);
}

ReplicatedUpdate::ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator,
                                   UpdateRule rule, Device device, const Tensor& gradients)
    : UpdatePolicy(partition, communicator, std::move(rule),
                   {.replicated = true, .device = device}),
      gathered_(static_cast<size_t>(partition.buckets())) {
  const DType dtype = partition.accumulator().dtype();
  if (gradients.dtype() == dtype) {
    gradients_ = gradients;
    return;
  }
  int64_t largest = 0;
  for (const dist::Bucket& b : partition.layout().buckets()) {
    largest = std::max(largest, b.elements);
  }
  for (int i = 0; i < std::min(slot_count, partition.buckets()); ++i) {
    slots_.push_back(flat_buffer(communicator, largest, dtype, Category::gradients));
  }
}

Tensor ReplicatedUpdate::target(int bucket) const {
  if (gradients_.defined()) return partition_.bucket_of(gradients_, bucket);
  const Tensor& slot = slots_[static_cast<size_t>(bucket) % slots_.size()];
  return slot.flat(0, partition_.bucket(bucket).elements);
}

void ReplicatedUpdate::gather(int bucket) {
  const Tensor whole = target(bucket);
  const dist::Range own = partition_.own_range(bucket);
  kernels::copy(current_context(whole.device()), whole.flat(own.begin, own.end),
                partition_.shard_of(partition_.accumulator(), bucket));
  gathered_[static_cast<size_t>(bucket)] =
      communicator_.all_gather(whole, {dist::Traffic::gradients, bucket});
}

void ReplicatedUpdate::prepare(int bucket) {
  // Buckets are updated from the last to the first: the first slots go to the last buckets.
  const bool room = gradients_.defined() ||
                    bucket >= partition_.buckets() - static_cast<int>(slots_.size());
  if (room) gather(bucket);
}

Tensor ReplicatedUpdate::sums(int bucket) {
  // The slot that the bucket before this one has left takes the next bucket but one.
  const int freed = bucket + 1;
  const int next = freed - static_cast<int>(slots_.size());
  if (!slots_.empty() && freed < partition_.buckets() && next >= 0) gather(next);
  gathered_[static_cast<size_t>(bucket)].wait();
  return target(bucket);
}

ShardedUpdate::ShardedUpdate(const Partition& partition, dist::Communicator& communicator,
                             UpdateRule rule, Device device)
    : UpdatePolicy(partition, communicator, std::move(rule),
                   {.replicated = false, .device = device}) {}

Tensor ShardedUpdate::sums(int bucket) {
  return partition_.shard_of(partition_.accumulator(), bucket);
}

}  // namespace tessera::optim
