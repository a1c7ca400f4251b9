// What a rank updates, and how the others learn of it.
//
// For each bucket, in this order: `prepare` starts what the update needs of other ranks, `update`
// waits for that and applies the rule, `publish` starts what makes the new weights known.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "optim/gradient_policy.h"
#include "optim/partition.h"

namespace tessera::optim {

class UpdatePolicy {
 public:
  UpdatePolicy(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
               int64_t state_elements);
  virtual ~UpdatePolicy() = default;

  virtual void prepare(int bucket) = 0;
  virtual void update(int bucket, std::span<const UpdateHyper> groups) = 0;
  virtual dist::Work publish(int bucket) = 0;

  /// Which range of a bucket this rank holds state for, and that state, one tensor a name.
  virtual dist::Range state_range(int bucket) const = 0;
  virtual std::vector<Tensor> bucket_state(int bucket) const = 0;

 protected:
  void apply(int bucket, const dist::Range& range, const Tensor& gradients,
             std::span<const UpdateHyper> groups);

  const Partition& partition_;
  dist::Communicator& communicator_;
  UpdateRule rule_;
  std::vector<Tensor> state_;  // one a name, [state_elements]
};

/// Stage 0: the summed gradients are gathered, and every rank updates everything.
class ReplicatedUpdate : public UpdatePolicy {
 public:
  ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
                   const Tensor& gradients);
  void prepare(int bucket) override;
  void update(int bucket, std::span<const UpdateHyper> groups) override;
  dist::Work publish(int) override { return {}; }
  dist::Range state_range(int bucket) const override;
  std::vector<Tensor> bucket_state(int bucket) const override;

 private:
  Tensor gradients_;  // [flat_elements]
  std::vector<dist::Work> gathered_;
};

/// Stages 1 and 2: a rank updates its own shard, and the new weights are gathered.
class ShardedUpdate : public UpdatePolicy {
 public:
  ShardedUpdate(const Partition& partition, dist::Communicator& communicator, UpdateRule rule);
  void prepare(int) override {}
  void update(int bucket, std::span<const UpdateHyper> groups) override;
  dist::Work publish(int bucket) override;
  dist::Range state_range(int bucket) const override { return partition_.own_range(bucket); }
  std::vector<Tensor> bucket_state(int bucket) const override;
};

}  // namespace tessera::optim
