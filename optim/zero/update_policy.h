// What a rank updates: which range of each bucket, from which sums, with which state, and where.
//
// Weights are updated in f32. Where a model's parameters have another dtype, or where the state
// lives on another device, the rank keeps master weights of its range beside the rule's state, and
// rounds them into the parameters after each update (Micikevicius et al., arXiv:1710.03740).
// Between two devices sums and values pass through optim/zero/host_crossing.h.
//
// For each bucket, from the last to the first: `prepare` starts what the update needs of other
// ranks; then, again for each, `update` waits for that and applies the rule.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "optim/kernels/step_scalars.h"
#include "optim/kernels/update.h"
#include "optim/zero/host_crossing.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

/// Which hyper-parameters each parameter of a partition takes in a step: an index of `hypers`, or
/// -1 where it is not updated.
struct UpdateChoice {
  std::span<const UpdateHyper> hypers;
  std::vector<int> hyper_of;
  const StepScalars* scalars = nullptr;  // as UpdateRanges has them
};

struct UpdateOptions {
  bool replicated = false;  // stage 0: this rank updates everything
  Device device;            // of master weights and state
};

class UpdatePolicy {
 public:
  UpdatePolicy(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
               const UpdateOptions& options);
  virtual ~UpdatePolicy() = default;

  virtual void prepare(int bucket) = 0;
  void update(int bucket, const UpdateChoice& choice);

  /// Gives the master weights their values, where there are any.
  void fill(const ParameterSource& source);

  /// Which range of a bucket this rank updates.
  dist::Range range(int bucket) const;
  /// The f32 weights of that range, as far as `values` has not been rounded.
  Tensor weights(int bucket) const;
  /// The rule's state of that range, one tensor a name.
  std::vector<Tensor> state(int bucket) const;

 protected:
  /// The sums of the range's gradients, when they are there.
  virtual Tensor sums(int bucket) = 0;
  Tensor place(const Tensor& flat, int bucket) const;

  const Partition& partition_;
  dist::Communicator& communicator_;

 private:
  /// The range of the parameters' values, in their dtype.
  Tensor values(int bucket) const;
  /// The sums where the state is; starts those of the next bucket on their way.
  Tensor brought_sums(int bucket);

  UpdateRule rule_;
  UpdateOptions options_;
  Tensor masters_;             // f32, or undefined where the values themselves are updated
  std::vector<Tensor> state_;  // f32, one a name
  std::optional<HostCrossing> crossing_;  // where the state's device is not the values'
};

/// Stage 0: the summed gradients are gathered, and every rank updates everything.
class ReplicatedUpdate : public UpdatePolicy {
 public:
  /// `gradients`, flat: where the sums are gathered if these have their dtype.
  ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
                   Device device, const Tensor& gradients);
  void prepare(int bucket) override;

 protected:
  Tensor sums(int bucket) override;

 private:
  void gather(int bucket);
  Tensor target(int bucket) const;

  /// Buckets under way where the sums have slots of their own.
  static constexpr int slot_count = 2;

  Tensor gradients_;           // [flat_elements], or undefined
  std::vector<Tensor> slots_;  // else: as large as the largest bucket
  std::vector<dist::Work> gathered_;
};

/// Stages 1 to 3: a rank updates its own shard.
class ShardedUpdate : public UpdatePolicy {
 public:
  ShardedUpdate(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
                Device device);
  void prepare(int) override {}

 protected:
  Tensor sums(int bucket) override;
};

}  // namespace tessera::optim
