#include "optim/update_policy.h"

#include "core/kernels.h"

namespace tessera::optim {

UpdatePolicy::UpdatePolicy(const Partition& partition, dist::Communicator& communicator,
                           UpdateRule rule, int64_t state_elements)
    : partition_(partition), communicator_(communicator), rule_(std::move(rule)) {
  for (size_t i = 0; i < rule_.state_names().size(); ++i) {
    state_.push_back(flat_buffer(communicator, state_elements, Category::optimizer_state));
  }
}

void UpdatePolicy::apply(int bucket, const dist::Range& range, const Tensor& gradients,
                         std::span<const UpdateHyper> groups) {
  const Tensor weights = partition_.bucket_of(partition_.values(), bucket);
  const std::vector<Tensor> state = bucket_state(bucket);
  rule_.update(current_context(weights.device()),
               {weights.flat(range.begin, range.end), gradients, state},
               partition_.segments(bucket, range), groups);
}

ReplicatedUpdate::ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator,
                                   UpdateRule rule, const Tensor& gradients)
    : UpdatePolicy(partition, communicator, std::move(rule), partition.layout().flat_elements()),
      gradients_(gradients),
      gathered_(static_cast<size_t>(partition.buckets())) {}

void ReplicatedUpdate::prepare(int bucket) {
  const Tensor gradient = partition_.bucket_of(gradients_, bucket);
  const dist::Range own = partition_.own_range(bucket);
  kernels::copy(current_context(gradient.device()), gradient.flat(own.begin, own.end),
                partition_.shard_of(partition_.accumulator(), bucket));
  gathered_[static_cast<size_t>(bucket)] =
      communicator_.all_gather(gradient, {dist::Traffic::gradients, bucket});
}

void ReplicatedUpdate::update(int bucket, std::span<const UpdateHyper> groups) {
  gathered_[static_cast<size_t>(bucket)].wait();
  apply(bucket, state_range(bucket), partition_.bucket_of(gradients_, bucket), groups);
}

dist::Range ReplicatedUpdate::state_range(int bucket) const {
  return {0, partition_.bucket(bucket).elements};
}

std::vector<Tensor> ReplicatedUpdate::bucket_state(int bucket) const {
  std::vector<Tensor> list;
  for (const Tensor& state : state_) list.push_back(partition_.bucket_of(state, bucket));
  return list;
}

ShardedUpdate::ShardedUpdate(const Partition& partition, dist::Communicator& communicator,
                             UpdateRule rule)
    : UpdatePolicy(partition, communicator, std::move(rule), partition.layout().shard_elements()) {
}

void ShardedUpdate::update(int bucket, std::span<const UpdateHyper> groups) {
  apply(bucket, partition_.own_range(bucket),
        partition_.shard_of(partition_.accumulator(), bucket), groups);
}

dist::Work ShardedUpdate::publish(int bucket) {
  return communicator_.all_gather(partition_.bucket_of(partition_.values(), bucket),
                                  {dist::Traffic::parameters, bucket});
}

std::vector<Tensor> ShardedUpdate::bucket_state(int bucket) const {
  std::vector<Tensor> list;
  for (const Tensor& state : state_) list.push_back(partition_.shard_of(state, bucket));
  return list;
}

}  // namespace tessera::optim
