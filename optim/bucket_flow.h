// The way of a partition's buckets through a step: opened by a first contribution, complete,
// reduced to their owners, updated, published. One flow a partition; ZeroOptimizer runs them
// together.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "optim/gradient_policy.h"
#include "optim/partition.h"
#include "optim/update_policy.h"
#include "optim/zero_optimizer.h"

namespace tessera::optim {

/// Where a step stands, as every flow needs to know it.
struct MicroStep {
  int64_t index = 0;         // j
  int64_t count = 1;         // k
  int64_t contributors = 1;  // ranks with a micro-batch of their own in this micro-step
  bool contributes = true;   // this rank is one of them

  bool last() const { return index + 1 == count; }
};

class BucketFlow {
 public:
  BucketFlow(std::unique_ptr<Partition> partition, const UpdateRule& rule,
             std::shared_ptr<dist::Communicator> communicator, const ZeroOptions& options);
  ~BucketFlow();

  Partition& partition() { return *partition_; }
  const Partition& partition() const { return *partition_; }
  const UpdatePolicy& updates() const { return *updates_; }

  // Within a micro-step.
  void begin(const MicroStep& micro_step, int64_t global_micro_batches);
  Tensor gradient_view(int parameter);      // opens the bucket at its first parameter
  void gradient_complete(int parameter);
  void complete_missing();                  // parameters that backward did not reach give zeros
  bool complete(int bucket) const;
  void launch(int bucket);                  // sends a complete bucket to its owners

  // At the end of a step.
  void finish_reduction(int bucket);        // waits for the own shard of the gradient sum
  void update(const std::vector<UpdateHyper>& groups);
  void wait_published(int parameter);       // waits for a parameter's new value
  void synchronize();

  std::function<void()> on_complete;        // a bucket became complete

 private:
  struct Progress {
    Tensor gradient;       // while open
    std::vector<bool> written;
    int64_t missing = 0;   // parameters still without a complete gradient
    dist::Work reduced;
    dist::Work published;
  };
  void open(int bucket);
  void accumulate_locally(int bucket, const Tensor& gradient);
  dist::Work reduce(int bucket, const Tensor& gradient);
  dist::Work reduce_ordered(int bucket, const Tensor& gradient, int contributors, bool first);
  dist::Work reduce_fast(int bucket, const Tensor& gradient, int contributors, bool first);
  void attach_hooks();
  size_t position(int parameter) const;     // in its bucket

  std::unique_ptr<Partition> partition_;
  std::shared_ptr<dist::Communicator> communicator_;
  bool overlap_;
  Reduction reduction_;
  bool no_sync_;
  std::unique_ptr<GradientPolicy> gradients_;
  std::unique_ptr<UpdatePolicy> updates_;
  Tensor local_sum_;       // with no_sync: this rank's micro-batches, [flat_elements]
  Tensor scattered_;       // with fast reduction: what a reduce-scatter gives, one shard
  std::vector<Progress> progress_;
  MicroStep micro_step_;
  int64_t global_micro_batches_ = 0;
};

}  // namespace tessera::optim
