// What a ZeroOptimizer runs on: the partitions of its parameters, and their steps. A step is three
// verbs: reduce gradients to their owners, update the own shard, gather parameters. The reducer
// sends gradients while backward runs; launch() waits for them, and then each partition updates
// and gathers a bucket after the other.
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

/// Whether one of them is f16, so that losses are scaled.
bool any_f16(const std::vector<nn::NamedParameter>& parameters);

class ZeroEngine {
 public:
  ZeroEngine(const ZeroOptions& options, UpdateRule rule, const dist::World& world);

  /// Takes a model's parameters and running statistics over: groups[i] is the group of
  /// parameters[i]. Where a rank cannot, for lack of memory for instance, it throws, and so does
  /// every rank that has parameters already: it has these as before. Those that were to come have
  /// lost their values. Collective.
  void add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups,
           std::vector<nn::NamedStatistics> statistics);

  /// Begins a micro-step; the step's first begins the step.
  void begin(int64_t step, const MicroStep& micro_step);
  /// The running micro-step, by one of these: backward of its loss; nothing, where there is no
  /// data; or forward and backward of `loss`, with options.graph as a graph.
  void backward(const Tensor& loss);
  void skip();
  void run_micro_step(const std::function<Tensor()>& loss);

  /// Ends the step, and returns the number by which its result is asked for.
  int64_t launch();
  bool ready(int64_t number) const;
  StepReport result(int64_t number);
  bool under_way() const { return !launched_.empty(); }
  /// Whether a step ends without the host knowing its values.
  bool deferred() const;
  bool scales_losses() const { return scaler_ != nullptr; }

  /// Brings the sums of the step's gradients to their owners and computes their norm, once a step.
  void reduce();
  /// What a sum of gradients is multiplied by: the loss scale's inverse, and the correction for
  /// micro-batches without data.
  float gradient_factor() const;
  /// Norms of the sums of trainable(), after reduce(). Waits.
  std::vector<double> norms() const { return norm_.of_parameters(); }

  struct Place {
    const TrainablePartition* partition;
    int parameter;
  };
  /// Where a trainable parameter is; throws for a name that there is not.
  Place find(const std::string& name) const;
  const std::vector<std::unique_ptr<TrainablePartition>>& trainable() const { return trainable_; }
  /// All partitions, those of frozen parameters too.
  std::vector<StagedPartition*> partitions() const;

  /// Zeroes the update rule's state, and counts updates from 0 again.
  void reset_rule_state();

  /// All tensors of the state, what this rank answers for of them, and the way back.
  std::vector<StateTensor> state_tensors() const;
  std::vector<StatePiece> own_state() const;
  std::vector<int64_t> parameter_events() const;
  void restore(const StateSource& source);

  /// What the other ranks hear of with the running step, or the next one.
  void set_notes(uint8_t notes) { notes_ = notes; }
  /// Those of all ranks, of the step that was launched last.
  uint8_t last_notes() const { return record_.notes(); }

  const StepState& state() const { return state_; }
  const UpdateRule& rule() const { return rule_; }
  dist::Communicator& communicator() const { return *communicator_; }

 private:
  void add_partitions(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups);
  void add_partition(std::vector<PlacedParameter> parameters);
  GradientNorm norm_of_all() const;
  /// What add() may have to go back to.
  struct Extent {
    size_t trainable;
    size_t frozen;
    size_t parameters;  // trainable ones
    int64_t registered;
    bool scales_losses;
  };
  void shrink_to(const Extent& extent);
  /// By what the running micro-batch's gradients are multiplied.
  float backward_scale() const;
  float loss_scale() const { return scaler_ ? scaler_->scale() : 1.0f; }
  int64_t batches_with_data() const;
  /// Makes shares of all micro-batches shares of those that had data.
  float data_correction() const;

  /// What is known of a step from its launch until its result is asked for.
  struct Launched {
    int64_t number;
    StepReport report;             // but for what is computed
    std::vector<bool> reached;     // of each trainable parameter
    std::vector<int64_t> taken;    // before this step's update
    int64_t failures;              // that were known then
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
  std::unique_ptr<Reducer> reducer_;  // goes before the partitions that it works on
  GradientNorm norm_;

  int64_t registered_ = 0;       // parameters, of all kinds
  std::vector<int64_t> taken_;   // updates so far of each trainable parameter
  std::vector<bool> unreached_;  // of each: whether it was told

  uint8_t notes_ = 0;
  bool reduced_ = false;
  int64_t waited_before_ns_ = 0;

  StepValues values_;
  std::deque<Launched> launched_;
  int64_t next_number_ = 0;
  int64_t failures_ = 0;       // steps that were not finite, and whose caller knows
  int64_t failed_step_ = -1;   // the last of them
};

}  // namespace tessera::optim
