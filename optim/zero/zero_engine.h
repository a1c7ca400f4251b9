// The implementation of ZeroOptimizer: the partitions of its parameters, and their steps. A step is
// three verbs: reduce gradients to their owners, update the own shard, gather parameters. The
// reducer sends gradients while backward runs. launch() waits for them; then each partition updates
// and gathers one bucket after the other.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "optim/kernels/step_scalars.h"
#include "optim/kernels/update.h"
#include "optim/rules/loss_scaler.h"
#include "optim/zero/end_of_step/batch_statistics.h"
#include "optim/zero/end_of_step/gradient_norm.h"
#include "optim/zero/end_of_step/step_record.h"
#include "optim/zero/end_of_step/step_values.h"
#include "optim/zero/reducer.h"
#include "optim/zero/staged_partition.h"
#include "optim/zero/step_report.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

/// True if a parameter is f16, so that losses must be scaled.
bool any_f16(const std::vector<nn::NamedParameter>& parameters);

class ZeroEngine {
 public:
  ZeroEngine(const ZeroOptions& options, UpdateRule rule, const dist::World& world);

  /// Takes over a model's parameters and running statistics; groups[i] is the group of
  /// parameters[i]. If this fails on a rank, for instance for lack of memory, that rank throws. If
  /// the engine already has parameters, every rank throws and keeps these as they were; the new
  /// parameters have lost their values. Collective.
  void add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups,
           std::vector<nn::NamedStatistics> statistics);

  /// Begins a micro-step; the first one of a step begins the step.
  void begin(int64_t step, const MicroStep& micro_step);
  /// One of these runs the current micro-step: backward() of its loss; skip(), if there is no data;
  /// or run_micro_step(), which runs forward and backward of `loss`, with options.graph as a graph.
  void backward(const Tensor& loss);
  void skip();
  void run_micro_step(const std::function<Tensor()>& loss);

  /// Ends the step, and returns its number for ready() and result().
  int64_t launch();
  bool ready(int64_t number) const;
  StepReport result(int64_t number);
  bool under_way() const { return !launched_.empty(); }
  /// True if a step is launched without the host knowing its values.
  bool deferred() const;
  bool scales_losses() const { return scaler_ != nullptr; }

  /// Completes the gradient sums at their owners and computes their norm, once per step.
  void reduce();
  /// The factor on a gradient sum: the inverse of the loss scale, and the correction for
  /// micro-batches without data.
  float gradient_factor() const;
  /// The norms of all gradient sums of trainable(), after reduce(). The host waits.
  std::vector<double> norms() const { return norm_.of_parameters(); }

  struct Place {
    const TrainablePartition* partition;
    int parameter;
  };
  /// Finds a trainable parameter; throws for an unknown name.
  Place find(const std::string& name) const;
  const std::vector<std::unique_ptr<TrainablePartition>>& trainable() const { return trainable_; }
  /// All partitions, those of frozen parameters included.
  std::vector<StagedPartition*> partitions() const;

  /// Zeroes the update rule's state, and counts updates from 0 again.
  void reset_rule_state();

  /// All tensors of the state, the pieces of them that this rank saves, and the way back.
  std::vector<StateTensor> state_tensors() const;
  std::vector<StatePiece> own_state() const;
  std::vector<int64_t> parameter_events() const;
  void restore(const StateSource& source);

  /// Notes that travel to the other ranks with the current step, or with the next one.
  void set_notes(uint8_t notes) { notes_ = notes; }
  /// The notes of all ranks in the step that was launched last.
  uint8_t last_notes() const { return record_.notes(); }

  const StepState& state() const { return state_; }
  const UpdateRule& rule() const { return rule_; }
  dist::Communicator& communicator() const { return *communicator_; }

 private:
  void add_partitions(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups);
  void add_partition(std::vector<PlacedParameter> parameters);
  GradientNorm norm_of_all() const;
  /// The sizes to which add() rolls back if it fails.
  struct Extent {
    size_t trainable;
    size_t frozen;
    size_t parameters;  // trainable ones
    int64_t registered;
    bool scales_losses;
  };
  void shrink_to(const Extent& extent);
  /// The factor on the gradients of the current micro-batch.
  float backward_scale() const;
  float loss_scale() const { return scaler_ ? scaler_->scale() : 1.0f; }
  int64_t batches_with_data() const;
  /// The factor that turns a mean over all micro-batches into one over those that had data.
  float data_correction() const;

  /// A step that was launched and whose result was not asked for yet.
  struct Launched {
    int64_t number;
    StepReport report;                   // without the values that are still computed
    std::vector<bool> reached;           // per trainable parameter: true if it got a gradient
    std::vector<int64_t> update_counts;  // update_counts_ before this step's update
    int64_t failures;                    // failures_ at the launch
    FetchedScalars values;
  };
  Launched end_step();
  void update_by(const Launched& launched);
  void update_and_gather(const std::vector<bool>& reached, float gradient_scale,
                         const StepScalars* scalars);
  UpdateHyper hyper(int group, int64_t count, float gradient_scale) const;
  [[noreturn]] void fail_non_finite(const Launched& launched, const StepScalars& values);
  std::vector<std::string> newly_unreached(const std::vector<bool>& reached);

  const ZeroOptions& options_;
  UpdateRule rule_;
  std::shared_ptr<dist::Communicator> communicator_;
  std::unique_ptr<LossScaler> scaler_;
  StepState state_;
  MicroStepLog log_;
  StepRecord record_;
  BatchStatistics statistics_;
  std::vector<std::unique_ptr<TrainablePartition>> trainable_;
  std::vector<std::unique_ptr<StagedPartition>> frozen_;
  std::unique_ptr<Reducer> reducer_;  // destroyed before the partitions that it works on
  GradientNorm norm_;

  int64_t registered_ = 0;              // parameters, of all kinds
  std::vector<int64_t> update_counts_;  // updates so far of each trainable parameter
  std::vector<bool>
      warned_without_gradient_;  // true once the user was told that it got no gradient

  uint8_t notes_ = 0;
  bool reduced_ = false;
  int64_t waited_before_ns_ = 0;

  StepValues values_;
  std::deque<Launched> launched_;
  int64_t next_number_ = 0;
  int64_t failures_ = 0;      // non-finite steps that were reported to the caller
  int64_t failed_step_ = -1;  // the last of them
};

}  // namespace tessera::optim
