// A partition with the policies of its ZeRO stage: one policy for the parameters' values and, if
// the parameters are trained, one each for gradients, reduction and update. Options are turned into
// policies when a partition is made, so that the code of a step contains no branch on the stage.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "optim/zero/gradient_policy.h"
#include "optim/zero/optimizer_state.h"
#include "optim/zero/options.h"
#include "optim/zero/parameter_policy.h"
#include "optim/zero/partition.h"
#include "optim/zero/step_report.h"
#include "optim/zero/update_policy.h"

namespace tessera::optim {

/// Parameters, and the policy by which operations get the parameters' values. Frozen parameters use
/// this class itself, trained parameters use TrainablePartition.
class StagedPartition {
 public:
  /// Sets the hooks that operations call before and after they read the parameters. The destructor
  /// removes the hooks.
  StagedPartition(std::vector<PlacedParameter> parameters,
                  std::shared_ptr<dist::Communicator> communicator, const ZeroOptions& options,
                  MicroStepLog& log);
  virtual ~StagedPartition();
  StagedPartition(const StagedPartition&) = delete;
  StagedPartition& operator=(const StagedPartition&) = delete;

  const Partition& partition() const { return partition_; }
  ParameterPolicy& parameters() { return *parameters_; }

  /// Writes the parameters' values from `source`.
  virtual void fill(const ParameterSource& source);
  /// The range of a bucket that this rank holds (frozen parameters) or updates (trained ones).
  virtual dist::Range range(int bucket) const;
  /// The values of range(bucket). For trained parameters these are f32 values: the master weights
  /// if there are any, otherwise the parameters' own values.
  virtual Tensor weights(int bucket) const;

  /// Adds a description of every tensor of the parameters' state to `list`, in order of the
  /// parameters. The state is the values and, if the parameters are trained, the optimizer state.
  virtual void list_state(std::vector<StateTensor>& list) const;
  /// Adds this rank's shards of the parameters' state to `list`, as pieces.
  virtual void list_pieces(std::vector<StatePiece>& list) const;
  /// Restores the part of the parameters' state that this rank holds.
  virtual void restore(const StateSource& source);

 protected:
  /// Adds each parameter's part of this rank's shard of a bucket to `list`. `held` has the values
  /// of range(bucket).
  void list_pieces_of(const std::string& kind, int bucket, const Tensor& held,
                      std::vector<StatePiece>& list) const;
  StateTensor state_tensor(int parameter, const std::string& kind, DType dtype) const;

  std::shared_ptr<dist::Communicator> communicator_;
  Partition partition_;
  std::unique_ptr<ParameterPolicy> parameters_;
};

/// Parameters that are trained. The reducer handles their gradients (optim/zero/reducer.h).
class TrainablePartition : public StagedPartition {
 public:
  /// `first`: the index of the partition's first parameter among the optimizer's trainable
  /// parameters.
  TrainablePartition(std::vector<PlacedParameter> parameters, int64_t first,
                     const UpdateRule& rule, std::shared_ptr<dist::Communicator> communicator,
                     const ZeroOptions& options, MicroStepLog& log);

  int64_t first() const { return first_; }
  void begin(const MicroStep& micro_step) {
    gradients_->begin(micro_step);
    reduction_->begin(micro_step);
  }
  GradientPolicy& gradients() { return *gradients_; }
  ReductionPolicy& reduction() { return *reduction_; }

  void fill(const ParameterSource& source) override;
  dist::Range range(int bucket) const override { return updates_->range(bucket); }
  Tensor weights(int bucket) const override { return updates_->weights(bucket); }
  void list_state(std::vector<StateTensor>& list) const override;
  void list_pieces(std::vector<StatePiece>& list) const override;
  void restore(const StateSource& source) override;

  /// Updates range(b) of each bucket b. At stages 1 and 2 also gathers each updated bucket. Called
  /// at the end of a step, when the gradient sums are complete at their owners.
  void update_and_gather(const UpdateChoice& choice);

  /// Frees memory of gradients that is not kept from step to step (optim/zero/bucket_memory.h).
  /// Called after the update, or after a step without an update.
  void end_step();

  /// Zeroes the update rule's state.
  void reset_state() { updates_->reset_state(); }
  /// Copies the optimizer state on this rank into `result`, by parameter.
  void own_state(StateByName& result) const;
  /// Copies the optimizer state of whole parameters into `result`, on rank `root` only. Gathers one
  /// bucket at a time. Collective.
  void gather_state(int root, StateByName& result) const;

 private:
  void make_policies(const UpdateRule& rule, const ZeroOptions& options);
  /// Returns the stage's policy for gradients whose memory is separate from that of the sums.
  std::unique_ptr<GradientPolicy> own_gradients(int stage);
  void update(int bucket, const UpdateChoice& choice);
  void gather(int bucket);

  int64_t first_;
  bool overlap_;
  std::unique_ptr<GradientPolicy> gradients_;
  std::unique_ptr<ReductionPolicy> reduction_;
  std::unique_ptr<UpdatePolicy> updates_;
};

/// Returns a bucket's values in f32, [bucket elements], on every rank. This rank supplies the
/// values `own` of `range`. Either all ranks supply equally long shards, or each rank supplies the
/// whole bucket. Collective.
Tensor gather_bucket(const Partition& partition, int bucket, const Tensor& own,
                     const dist::Range& range, dist::Communicator& communicator,
                     dist::Traffic purpose = dist::Traffic::other);

}  // namespace tessera::optim
