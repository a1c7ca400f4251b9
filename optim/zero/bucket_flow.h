// The way of a partition's buckets through a step: opened by a first contribution, complete,
// reduced to their owners, updated, published. One flow a partition; ZeroOptimizer runs them
// together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "optim/zero/gradient_policy.h"
#include "optim/zero/options.h"
#include "optim/zero/parameter_policy.h"
#include "optim/zero/partition.h"
#include "optim/zero/update_policy.h"

namespace tessera::optim {

/// Where a step stands, as every flow needs to know it.
struct MicroStep {
  int64_t index = 0;         // j
  int64_t count = 1;         // k
  int64_t contributors = 1;  // ranks with a micro-batch of their own in this micro-step
  bool contributes = true;   // this rank is one of them

  bool last() const { return index + 1 == count; }
};

/// Parameters and how operations find their values: all that frozen parameters have.
class ParameterFlow {
 public:
  ParameterFlow(std::vector<PlacedParameter> parameters,
                std::shared_ptr<dist::Communicator> communicator, const ZeroOptions& options,
                MicroStepLog& log);
  virtual ~ParameterFlow();
  ParameterFlow(const ParameterFlow&) = delete;
  ParameterFlow& operator=(const ParameterFlow&) = delete;

  const Partition& partition() const { return partition_; }
  ParameterPolicy& parameters() { return *parameters_; }

  /// Gives the parameters their values.
  virtual void fill(const ParameterSource& source);
  /// The f32 values of the range of a bucket that this rank is responsible for, and the range.
  virtual dist::Range range(int bucket) const;
  virtual Tensor weights(int bucket) const;

 protected:
  std::shared_ptr<dist::Communicator> communicator_;
  Partition partition_;
  std::unique_ptr<ParameterPolicy> parameters_;
};

class BucketFlow : public ParameterFlow {
 public:
  BucketFlow(std::vector<PlacedParameter> parameters, const UpdateRule& rule,
             std::shared_ptr<dist::Communicator> communicator, const ZeroOptions& options,
             MicroStepLog& log);
  ~BucketFlow() override;

  const UpdatePolicy& updates() const { return *updates_; }
  void fill(const ParameterSource& source) override;
  dist::Range range(int bucket) const override { return updates_->range(bucket); }
  Tensor weights(int bucket) const override { return updates_->weights(bucket); }

  // Within a micro-step.
  void begin(const MicroStep& micro_step, int64_t global_micro_batches);
  Tensor gradient_view(int parameter);  // opens the bucket at its first parameter
  void gradient_complete(int parameter);
  void complete_missing();              // parameters that backward did not reach give zeros
  bool complete(int bucket) const;
  void launch(int bucket);              // sends a complete bucket to its owners
  void settle();                        // waits for all that is under way

  // At the end of a step.
  void finish_reduction();              // waits for the own shards of the gradient sums
  void update(const UpdateChoice& choice);

  std::function<void(int parameter)> on_gradient;  // a parameter got its gradient
  std::function<void()> on_complete;               // a bucket became complete

 private:
  struct Progress {
    Tensor gradient;       // while open
    std::vector<bool> written;
    int64_t missing = 0;   // parameters still without a complete gradient
    dist::Work reduced;
  };
  void make_policies(const UpdateRule& rule, const ZeroOptions& options);
  void attach_gradient_hooks();
  void open(int bucket);
  void complete_bucket(int bucket);
  void accumulate_locally(int bucket, const Tensor& gradient);
  dist::Work reduce(int bucket, const Tensor& gradient);
  dist::Work reduce_ordered(int bucket, const Tensor& gradient, int contributors, bool first);
  dist::Work reduce_fast(int bucket, const Tensor& gradient, int contributors, bool first);
  size_t position(int parameter) const;  // in its bucket

  MicroStepLog& log_;
  bool overlap_;
  Reduction reduction_;
  bool no_sync_;
  std::unique_ptr<GradientPolicy> gradients_;
  std::unique_ptr<UpdatePolicy> updates_;
  Tensor local_sum_;  // with no_sync: this rank's micro-batches, [flat_elements]
  Tensor scattered_;  // with fast reduction: what a reduce-scatter gives, one shard
  std::vector<Progress> progress_;
  MicroStep micro_step_;
  int64_t global_micro_batches_ = 0;
};

}  // namespace tessera::optim
