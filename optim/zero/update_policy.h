// Policies that decide which range of each bucket a rank updates, from which gradient sums, and
// with which state of the update rule.
//
// Weights are updated in f32. A parameter has f32 master weights beside the rule's state if its
// dtype is not f32, or if the update runs on another device. After each update the rank rounds its
// master weights into the parameters (Micikevicius et al., arXiv:1710.03740). An UpdatePlace
// decides whether the update runs on the device of the ranks or on the host
// (optim/zero/update_place.h).
//
// In a step, `prepare` is called for each bucket, from the last to the first. Then `update` is
// called for each bucket in the same order. `update` waits for the bucket's sums, and applies the
// rule.
//
// With ReplicatedUpdate, the sums must be gathered. `prepare` starts the gather of a bucket if
// memory is free for the bucket's sums. The other gathers are started by calls of `update`, in
// memory that earlier updates no longer need.
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

/// The hyper-parameters of a partition's parameters in one step: hyper_of[parameter] is an index
/// into `hypers`, or -1 if the parameter is not updated.
struct UpdateChoice {
  std::span<const UpdateHyper> hypers;
  std::vector<int> hyper_of;
  /// Scalars that the host does not know yet when it launches an update on a GPU, or null.
  const StepScalars* scalars = nullptr;
};

class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  virtual void prepare(int bucket) = 0;
  void update(int bucket, const UpdateChoice& choice);

  /// Sets the master weights from `source`. Does nothing if there are no master weights.
  void fill(const nn::ParameterSource& source);

  /// Zeroes the rule's state.
  void reset_state();
  /// Sets the rule's state tensor `index`, in the order of state_names(), from `source`.
  void fill_state(size_t index, const nn::ParameterSource& source);

  /// The range of a bucket that this rank updates.
  virtual dist::Range range(int bucket) const = 0;
  /// The f32 weights of range(bucket): the master weights, or the values if there are none.
  Tensor weights(int bucket) const;
  /// The rule's state of range(bucket), one tensor per name.
  std::vector<Tensor> state(int bucket) const;
  std::vector<std::string> state_names() const { return rule_.state_names(); }

 protected:
  /// `elements`: the number of elements of all ranges that this rank updates.
  UpdatePolicy(const Partition& partition, UpdateRule rule, std::unique_ptr<UpdatePlace> place,
               int64_t elements);
  /// Waits for the gradient sums of range(bucket), and returns them on the device of the ranks.
  virtual Tensor sums(int bucket) = 0;
  /// A bucket's part of a buffer for all ranges that this rank updates.
  virtual Tensor range_of(const Tensor& flat, int bucket) const = 0;

  const Partition& partition_;

 private:
  /// The parameters' values in range(bucket), in their dtype.
  Tensor values(int bucket) const;
  /// The gradient sums of range(bucket), on the device of the update.
  Tensor copied_sums(int bucket);

  UpdateRule rule_;
  std::unique_ptr<UpdatePlace> place_;
  Tensor masters_;             // f32, or undefined if the values themselves are updated
  std::vector<Tensor> state_;  // f32, one per name
};

/// Stage 0: the summed gradients are gathered, and every rank updates everything.
class ReplicatedUpdate : public UpdatePolicy {
 public:
  /// `gradients` is the memory of the step's gradients. If the sums have the gradients' dtype, they
  /// are gathered into this memory, which must then outlive this object.
  ReplicatedUpdate(const Partition& partition, dist::Communicator& communicator, UpdateRule rule,
                   std::unique_ptr<UpdatePlace> place, BucketMemory& gradients);
  void prepare(int bucket) override;
  dist::Range range(int bucket) const override { return partition_.whole_range(bucket); }

 protected:
  Tensor sums(int bucket) override;
  Tensor range_of(const Tensor& flat, int bucket) const override;

 private:
  void gather(int bucket);
  Tensor target(int bucket) const;

  /// The largest number of slots_. Two are enough, because one bucket is gathered while another one
  /// is updated.
  static constexpr int slot_count = 2;

  dist::Communicator& communicator_;
  BucketMemory* gradients_ = nullptr;  // null if the sums have another dtype than the gradients
  std::vector<Tensor> slots_;  // used if gradients_ is null; each as large as the largest bucket
  std::vector<dist::Work> gathered_;
};

/// Stages 1 to 3: each rank updates only its shard of a bucket. Also used at stage 0 if
/// gradients_in_sums() is true (optim/zero/gradient_policy.h): the shard is then the whole bucket.
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
