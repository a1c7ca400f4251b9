// Computes the costs of a step, bucket by bucket. step_time places these costs on its time lines.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/plan/plan_groups.h"
#include "optim/plan/step_time.h"

namespace tessera::optim {

/// Computation: operations, and bytes moved in memory.
struct Cost {
  double flops = 0;
  double bytes = 0;
  Cost operator*(double factor) const { return {flops * factor, bytes * factor}; }
  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

/// A transfer on the channel (step_time.h): seconds of sending, then the additions by the rank that
/// owns the shard.
struct Transfer {
  double seconds = 0;
  Cost additions = {};
};

struct BucketCost {
  size_t group = 0;
  size_t block = 0;         // stage 3: index of the bucket's block in StepCosts::blocks[group]
  int64_t registered = 0;   // the lowest registration index of the bucket's parameters
  bool tied = false;        // holds a tied parameter, assumed to be the output head (step_time.h)
  bool trainable = true;
  bool reached = true;      // false: backward ends before it comes to this bucket's parameters
  double elements = 0;      // elements of the bucket's parameters, without padding
  Cost forward = {};        // for a tied bucket: the cost of the output head
  Cost backward = {};
  Cost local_addition = {};  // no_sync: adding the bucket's gradient to the rank's local sum
  Cost update = {};
  Transfer exchange = {};
  Transfer gather = {};     // stage 0: gathers the gradient sum; stages 1 and 2: the parameters
};

/// A block of buckets that stage 3 gathers together.
struct BlockCost {
  Transfer gather = {};
  bool tied = false;
  bool reached = false;  // backward reads values of the block
};

struct StepCosts {
  std::vector<BucketCost> buckets;             // in the order in which backward completes them
  std::vector<std::vector<BlockCost>> blocks;  // stage 3: each group's blocks, in backward order
  Transfer end = {};          // exchange of norms, losses and flags
};

/// Computes the costs of a step. Throws for an invalid input, as plan_groups does.
StepCosts step_costs(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates);

}  // namespace tessera::optim
