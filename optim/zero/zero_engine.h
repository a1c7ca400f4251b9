// What a ZeroOptimizer runs on: the flows of its partitions, the order in which ranks do things
// together, and where the running step stands.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/kernels/step_scalars.h"
#include "optim/kernels/update.h"
#include "optim/rules/loss_scaler.h"
#include "optim/zero/batch_statistics.h"
#include "optim/zero/bucket_flow.h"
#include "optim/zero/gradient_norm.h"
#include "optim/zero/micro_step_kind.h"
#include "optim/zero/step_record.h"
#include "optim/zero/step_values.h"

namespace tessera::optim {

/// Whether one of them is f16, so that losses are scaled.
bool any_f16(const std::vector<nn::NamedParameter>& parameters);

class ZeroEngine {
 public:
  ZeroEngine(const ZeroOptions& options, UpdateRule rule, const dist::World& world);

  /// Takes parameters over: groups[i] is the group of parameters[i].
  void add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups);
  void add(const std::vector<nn::NamedStatistics>& statistics);

  /// Begins a micro-step; the step's first begins the step.
  void begin(int64_t step, const MicroStep& micro_step, int64_t micro_batches);
  void backward(const Tensor& loss);
  void skip();
  /// The running micro-step with this loss: forward and backward, or with options.graph, from the
  /// second micro-step on, the graph of both.
  void run_micro_step(const std::function<Tensor()>& loss);

  /// Ends the step, and returns the number by which its result is asked for.
  int64_t launch();
  bool ready(int64_t number) const;
  StepReport result(int64_t number);
  bool under_way() const { return !launched_.empty(); }
  /// Whether a step ends without the host knowing its values.
  bool deferred() const;

  /// Brings the sums of the step's gradients to their owners and computes their norm, once a step.
  void reduce();
  bool all_micro_steps_done() const;

  struct Place {
    BucketFlow* flow;
    int parameter;
  };
  /// Where a trainable parameter is; throws for a name that there is not.
  Place find(const std::string& name) const;

  /// All flows, those of frozen parameters too.
  std::vector<ParameterFlow*> flows() const;
  const std::vector<std::unique_ptr<BucketFlow>>& trainable() const { return trainable_; }
  /// What a sum of gradients is multiplied by: the loss scale's inverse, and the correction for
  /// micro-batches without data.
  float gradient_factor() const;
  const GradientNorm& norm() const { return norm_; }

  const ZeroOptions& options;
  UpdateRule rule;
  std::shared_ptr<dist::Communicator> communicator;

  // The running step.
  int64_t step = 0;
  bool began = false;
  bool running = false;  // between a micro-batch's begin and its backward
  MicroStep micro_step;
  int64_t micro_batches = 0;
  float share() const { return 1.0f / static_cast<float>(micro_batches); }
  int64_t finished = 0;  // micro-steps

 private:
  void add_flow(std::vector<PlacedParameter> parameters);
  void sort_buckets();
  void launch_complete();
  void begin_flows();
  void propagate(const Tensor& loss);
  void end_flows();
  void end_micro_step();
  /// A graph of a micro-step, and what of it only hosts know.
  struct Captured {
    std::function<void()> launch;
    std::vector<int64_t> reached;  // parameters
  };
  Captured capture(const std::function<Tensor()>& loss);
  void settle();
  int64_t batches_with_data() const;
  /// Makes shares of all micro-batches shares of those that had data.
  float data_correction() const;
  UpdateHyper hyper(int group, int64_t count, float gradient_scale) const;

  /// What is known of a step from its launch until its result is asked for.
  struct Launched {
    int64_t number;
    StepReport report;             // but for what is computed
    std::vector<bool> reached;     // of each trainable parameter
    std::vector<int64_t> taken;    // before this step's update
    int64_t failures;              // that were known then
    FetchedScalars values;
  };
  void update_by(const Launched& launched);
  void update(const std::vector<bool>& reached, float gradient_scale, const StepScalars* scalars);
  [[noreturn]] void fail_non_finite(const Launched& launched, const StepScalars& values);
  std::vector<std::string> newly_unreached(const std::vector<bool>& reached);

  std::vector<std::unique_ptr<BucketFlow>> trainable_;
  std::vector<std::unique_ptr<ParameterFlow>> frozen_;
  GradientNorm norm_;
  StepRecord record_;
  BatchStatistics statistics_;
  std::unique_ptr<LossScaler> scaler_;
  int64_t registered_ = 0;       // parameters, of all kinds
  std::vector<int64_t> taken_;   // updates so far of each trainable parameter
  std::vector<bool> unreached_;  // of each: whether it was told
  std::vector<int64_t> first_;   // of each trainable flow: its first parameter in these

  // Collectives start in this order, the same on every rank: backward reaches parameters of later
  // registration first.
  std::vector<std::pair<BucketFlow*, int>> order_;
  size_t next_ = 0;

  MicroStepLog log_;       // of the running micro-step
  MicroStepLog last_log_;  // of the last one that had data
  bool reduced_ = false;
  int64_t waited_before_ns_ = 0;

  std::vector<int64_t> reached_;  // in the running micro-step
  std::map<MicroStepKind, Captured> graphs_;
  bool ready_to_capture_ = false;  // a micro-step has run without a graph
  Tensor loss_;                    // [1], with graphs: where they leave their micro-batch's loss

  StepValues values_;
  std::deque<Launched> launched_;
  int64_t next_number_ = 0;
  int64_t failures_ = 0;       // steps that were not finite, and whose caller knows
  int64_t failed_step_ = -1;   // the last of them
};

}  // namespace tessera::optim
