// The implementation of ZeroOptimizer: it holds the partitions and the row-sparse tables of the
// parameters, and runs the steps. A step has three phases: reduce gradients to their owners, update
// this rank's shard, gather parameters.
// The reducer sends gradients while backward runs. launch() waits for the gradient sums; then each
// partition updates and gathers its buckets one after the other.
#pragma once

#include <deque>
#include <functional>
#include <map>
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
#include "optim/zero/step_trace.h"

namespace tessera::optim {

/// True if a parameter is f16, so that losses must be scaled.
bool any_f16(const std::vector<nn::NamedParameter>& parameters);

class ZeroEngine {
 public:
  ZeroEngine(const ZeroOptions& options, UpdateRule rule, const dist::World& world);

  /// Adds a model's parameters and running statistics. groups[i] is the group of parameters[i]: 0
  /// for the rule's own hyper-parameters, g for ZeroOptions::groups[g - 1]. Collective. A rank may
  /// fail, for instance for lack of memory: in the engine's first call only that rank throws, in a
  /// later call every rank throws. Where it throws, the parameters have their old values again, and
  /// parameters of earlier calls stay as they were.
  void add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups,
           std::vector<nn::NamedStatistics> statistics);

  /// Begins a micro-step; the first one of a step begins the step.
  void begin(int64_t step, const MicroStep& micro_step);
  /// Throws unless a micro-step has begun and has not ended. `call` is the name of the calling
  /// function, for the error message.
  void check_open(const char* call) const;
  // A micro-step ends with one of the next three calls.
  /// Runs backward of the micro-step's loss, after the caller has run forward.
  void backward(const Tensor& loss);
  /// Replaces forward and backward on a rank without data.
  void skip();
  /// Runs forward and backward of `loss`. With options.graph, runs them as a CUDA graph, except in
  /// the first micro-step after each add() (optim/zero/graphs.h).
  void run_micro_step(const std::function<Tensor()>& loss);

  /// Ends the step, and returns the number of this launch for ready() and result(). Throws if
  /// StepValues::slots launched steps already wait for a call of result().
  int64_t launch();
  bool ready(int64_t number) const;
  StepReport result(int64_t number);
  /// True if a launched step still waits for a call of result().
  bool under_way() const { return !launched_.empty(); }
  /// True if the host launches a step's update before it knows the step's loss and norm.
  bool deferred() const;
  bool scales_losses() const { return scaler_ != nullptr; }

  /// Exchanges the step's record and batch statistics, completes the gradient sums at their owners,
  /// and computes their sum of squares. Further calls in the same step do nothing. Collective.
  void reduce();
  /// The factor that turns a gradient sum into the gradient of the step's mean loss: the correction
  /// for micro-batches without data, divided by the loss scale.
  float gradient_factor() const;
  /// Returns the norm of each trainable parameter's gradient sum, by name. reduce() must have been
  /// called. The host waits for the device.
  std::map<std::string, double> norms() const;

  struct Place {
    const TrainablePartition* partition;
    int parameter;
  };
  /// Finds a trainable dense parameter; throws for any other name.
  Place find(const std::string& name) const;
  const std::vector<std::unique_ptr<TrainablePartition>>& trainable() const { return trainable_; }
  const std::vector<std::unique_ptr<Table>>& tables() const { return tables_; }
  /// The trainable table of this name, or nullptr.
  const Table* find_table(const std::string& name) const;
  /// All partitions, those of frozen parameters included.
  std::vector<StagedPartition*> partitions() const;

  /// Zeroes the update rule's state, and counts updates from 0 again.
  void reset_rule_state();

  // Saving and restoring, as ZeroOptimizer describes. In ZeroOptimizer, own_state() is named
  // own_state_pieces(), and restore() is named restore_state().
  std::vector<StateTensor> state_tensors() const;
  std::vector<StatePiece> own_state() const;
  std::vector<int64_t> parameter_events() const;
  void restore(const StateSource& source);

  /// Sets this rank's notes, eight bits (ZeroOptimizer::set_notes). reduce() sends them to all
  /// ranks in the current step. If called between two steps, or after the current step's reduce(),
  /// the notes are sent in the next step.
  void set_notes(uint8_t notes) { notes_ = notes; }
  /// The bits set in any rank's notes of the step that was launched last. Must be called before the
  /// next step begins.
  uint8_t last_notes() const { return record_.notes(); }

  const StepState& state() const { return state_; }
  const UpdateRule& rule() const { return rule_; }
  dist::Communicator& communicator() const { return *communicator_; }

 private:
  void add_partitions(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups);
  /// Adds parameters of one dtype that are all trainable or all frozen. The dense parameters become
  /// one partition, and each row-sparse parameter becomes a table.
  void add_part(std::vector<PlacedParameter> parameters);
  void add_partition(std::vector<PlacedParameter> parameters);
  void add_table(PlacedParameter placed);
  void add_counts(size_t parameters);
  /// Returns the number of updates of each trainable parameter, in the order of update_counts_.
  /// Throws InputError if a number is negative or too large.
  std::vector<int64_t> read_update_counts(const StateSource& source) const;
  GradientNorm norm_of_all() const;
  /// Waits for the gradient sums of the trainable tables. Then each rank sends two counts per table
  /// to all ranks: the touched rows of its shard, and the touched blocks of 256 elements
  /// (optim/tables/table.h). Collective.
  void gather_touched_counts();
  /// The sizes of the engine's lists before a call of add(), and whether losses were scaled. If the
  /// call fails, shrink_to() restores them.
  struct Extent {
    size_t trainable;
    size_t frozen;
    size_t tables;
    size_t parameters;   // number of trainable parameters
    int64_t registered;  // number of all parameters
    bool scales_losses;
  };
  void shrink_to(const Extent& extent);
  /// The factor that backward puts on the current micro-batch's gradients: its share of the step,
  /// times loss_scale().
  float backward_scale() const;
  float loss_scale() const { return scaler_ ? scaler_->scale() : 1.0f; }
  int64_t batches_with_data() const;
  /// The number of updates of the parameter that has had the most.
  int64_t most_updates() const;
  /// The factor that turns a mean over all micro-batches into the mean over those with data.
  float data_correction() const;

  /// A launched step that still waits for a call of result().
  struct Launched {
    int64_t number;
    StepReport report;                   // loss and norm are filled in by result()
    std::vector<bool> reached;           // per trainable parameter: true if it got a gradient
    std::vector<int64_t> update_counts;  // update_counts_ before this step's update
    int64_t failures;                    // failures_ at the launch
    FetchedScalars values;
  };
  /// Throws if a micro-step without data is not allowed.
  void check_skip() const;
  void end_micro_step();
  int64_t launch_end();
  /// Sets schedule_factor_ for the current step. Closes the step and throws if the schedule throws,
  /// or if its factor is not finite or is negative.
  void call_schedule();
  Launched end_step();
  /// Frees gradient memory that is not kept from step to step. Then starts the fetches of table
  /// rows that TableValues::prefetch has postponed until after the update. Called even if the step
  /// has updated nothing.
  void close_step();
  void update_by(const Launched& launched);
  void update_and_gather(const std::vector<bool>& reached, float gradient_scale,
                         const StepScalars* scalars);
  void update_tables(const std::vector<bool>& reached, float gradient_scale,
                     const StepScalars* scalars);
  const UpdateRule& table_rule() const {
    return options_.table_rule ? *options_.table_rule : rule_;
  }
  UpdateHyper hyper(const UpdateRule& rule, int group, int64_t count, float gradient_scale) const;
  [[noreturn]] void fail_non_finite(const Launched& launched, const StepScalars& values);
  std::vector<std::string> newly_without_gradient(const std::vector<bool>& reached);

  const ZeroOptions& options_;
  UpdateRule rule_;
  std::shared_ptr<dist::Communicator> communicator_;
  std::unique_ptr<LossScaler> scaler_;
  StepState state_;
  StepTrace trace_;
  MicroStepLog log_;
  StepRecord record_;
  BatchStatistics statistics_;
  std::vector<std::unique_ptr<TrainablePartition>> trainable_;
  std::vector<std::unique_ptr<StagedPartition>> frozen_;
  std::vector<std::unique_ptr<Table>> tables_;
  dist::HostBuffer touched_counts_;  // i64 [ranks * trainable tables * 2]: touched rows, blocks
  std::vector<GradientNorm::Part> norm_parts_;  // the norm adds their squares in this order
  std::unique_ptr<Reducer> reducer_;  // destroyed before the partitions that it works on
  GradientNorm norm_;

  bool is_first_add_ = true;            // true until add() has been called
  int64_t registered_ = 0;              // number of parameters, frozen ones included
  std::vector<int64_t> update_counts_;  // updates so far of each trainable parameter
  std::vector<bool>
      warned_without_gradient_;  // per trainable parameter: true once a report has listed it

  uint8_t notes_ = 0;             // sent by the next reduce()
  bool reduced_ = false;          // true once reduce() has run in the current step
  float schedule_factor_ = 1;     // of the step that is ending; the schedule is called once a step
  int64_t waited_before_ns_ = 0;  // dist::waited_ns() at the beginning of the current step

  StepValues values_;
  std::deque<Launched> launched_;
  int64_t next_number_ = 0;
  int64_t failures_ = 0;      // non-finite steps that were reported to the caller
  int64_t failed_step_ = -1;  // the last non-finite step that was reported
};

}  // namespace tessera::optim
