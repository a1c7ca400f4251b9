// What a ZeroOptimizer runs on: the flows of its partitions, the order in which ranks do things
// together, and where the running step stands.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/bucket_flow.h"
#include "optim/gradient_norm.h"
#include "optim/loss_scaler.h"
#include "optim/step_record.h"

namespace tessera::optim {

class ZeroEngine {
 public:
  ZeroEngine(const ZeroOptions& options, UpdateRule rule, const dist::World& world);

  /// Takes parameters over: groups[i] is the group of parameters[i].
  void add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups);

  /// Begins a micro-step; the step's first begins the step.
  void begin(int64_t step, const MicroStep& micro_step, int64_t micro_batches);
  void backward(const Tensor& loss);
  void skip();
  StepReport finish();

  /// Waits for the sums of the step's gradients and computes their norms, once a step.
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
  void end_micro_step();
  float fold_losses() const;
  int64_t batches_with_data() const;
  /// Makes shares of all micro-batches shares of those that had data.
  float data_correction() const;
  int64_t first_non_finite() const;
  void check_finite(float loss, float norm) const;
  void update(float gradient_scale);
  UpdateHyper hyper(int group, int64_t count, float gradient_scale) const;
  std::vector<std::string> newly_unreached();

  std::vector<std::unique_ptr<BucketFlow>> trainable_;
  std::vector<std::unique_ptr<ParameterFlow>> frozen_;
  GradientNorm norm_;
  StepRecord record_;
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
  double norm_value_ = 0;  // of the sums as they are
  int64_t waited_before_ns_ = 0;
};

}  // namespace tessera::optim
