// What a rank updates: which range of each bucket, from which sums, with which state.
//
// Weights are updated in f32. Where a model's parameters have another dtype, or where the state
// lives on another device, the rank keeps master weights of its range beside the rule's state, and
// rounds them into the parameters after each update (Micikevicius et al., arXiv:1710.03740). Where
// that happens, on the ranks' device or on the host, is optim/zero/update_place.h's.
//
// For each bucket, from the last to the first: `prepare` starts what the update needs of other
// ranks; then, again for each, `update` waits for that and applies the rule.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "optim/kernels/step_scalars.h"
#include "optim/kernels/update.h"
#include "optim/zero/partition.h"
#include "optim/zero/update_place.h"

namespace tessera::optim {

/// Which hyper-parameters each parameter of a partition takes in a step: an index of `hypers`, or
/// -1 where it is not updated.
struct UpdateChoice {
  std::span<const UpdateHyper> hypers;
  std::vector<int> hyper_of;
  const StepScalars* scalars = nullptr;  // as UpdateRanges has them
};

class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  virtual void prepare(int bucket) = 0;
  void update(int bucket, const UpdateChoice& choice);

  /// Gives the master weights their values, where there are any.
  void fill(const nn::ParameterSource& source);

  /// Zeroes the rule's state.
  void reset_state();
  /// Gives the rule's state of number `index`, in the order of state_names(), its values.
  void fill_state(size_t index, const nn::ParameterSource& source);

  /// Which range of a bucket this rank updates.
  virtual dist::Range range(int bucket) const = 0;
  /// The f32 weights of that range, as far as `values` has not been rounded.
  Tensor weights(int bucket) const;
  /// The rule's state of that range, one tensor a name.
  std::vector<Tensor> state(int bucket) const;
  std::vector<std::string> state_names() const { return rule_.state_names(); }

 protected:
  /// `elements`: of all ranges that this rank updates.
  UpdatePolicy(const Partition& partition, UpdateRule rule, std::unique_ptr<UpdatePlace> place,
               int64_t elements);
  /// The sums of the range's gradients where the ranks compute, when they are there.
  virtual Tensor sums(int bucket) = 0;
  /// The bucket's range of memory for all ranges.
  virtual Tensor range_of(const Tensor& flat, int bucket) const = 0;

  const Partition& partition_;

 private:
  /// The range of the parameters' values, in their dtype.
  Tensor values(int bucket) const;
  /// The sums of the range's gradients where the update runs.
  Tensor brought_sums(int bucket);

  UpdateRule rule_;
  std::unique_ptr<UpdatePlace> place_;
  Tensor masters_;             // f32, or undefined where the values themselves are updated
  std::vector<Tensor> state_;  // f32, one a name
};

/// Stage 0: the summed gradients are gathered, and every rank updates everything.
class ReplicatedUpdate : public UpdatePolicy {
 public:
  /// `gradients`, flat: where the sums are gathered if these have their dtype.
  ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
                   std::unique_ptr<UpdatePlace> place, const Tensor& gradients);
  void prepare(int bucket) override;
  dist::Range range(int bucket) const override { return partition_.whole_range(bucket); }

 protected:
  Tensor sums(int bucket) override;
  Tensor range_of(const Tensor& flat, int bucket) const override;

 private:
  void gather(int bucket);
  Tensor target(int bucket) const;

  /// Buckets under way where the sums have slots of their own.
  static constexpr int slot_count = 2;

  dist::Communicator& communicator_;
  Tensor gradients_;           // [flat_elements], or undefined
  std::vector<Tensor> slots_;  // else: as large as the largest bucket
  std::vector<dist::Work> gathered_;
};

/// Stages 1 to 3: a rank updates its own shard.
class ShardedUpdate : public UpdatePolicy {
 public:
  ShardedUpdate(const Partition& partition, UpdateRule rule, std::unique_ptr<UpdatePlace> place);
  void prepare(int) override {}
  dist::Range range(int bucket) const override { return partition_.own_range(bucket); }

 protected:
  Tensor sums(int bucket) override;
  Tensor range_of(const Tensor& flat, int bucket) const override;
};

}  // namespace tessera::optim
