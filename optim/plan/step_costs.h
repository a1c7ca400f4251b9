// What the parts of a step cost, bucket by bucket: what step_time lays out on its lines of time.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/plan/plan_groups.h"
#include "optim/plan/step_time.h"

namespace tessera::optim {

/// What is computed: operations, and bytes that move in memory.
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

/// What the channel does: seconds on the wire, then the owner's additions.
struct Transfer {
  double seconds = 0;
  Cost additions = {};
};

struct BucketCost {
  size_t group = 0;
  size_t block = 0;         // of the group, at stage 3
  int64_t registered = 0;   // the lowest place in the model of its parameters
  bool tied = false;
  bool trainable = true;
  bool reached = true;      // by backward
  double elements = 0;      // of its parameters, without padding
  Cost forward = {};        // of a tied one: of the head
  Cost backward = {};
  Cost local_addition = {};  // no_sync: of its gradient to the rank's own sum
  Cost update = {};
  Transfer exchange = {};
  Transfer gather = {};     // stage 0: of its sum; stages 1 and 2: of its parameters
};

/// What stage 3 gathers at once.
struct BlockCost {
  Transfer gather = {};
  bool tied = false;
  bool reached = false;  // by backward, which reads values of it
};

struct StepCosts {
  std::vector<BucketCost> buckets;             // in the order in which backward completes them
  std::vector<std::vector<BlockCost>> blocks;  // of each group, in order of backward; at stage 3
  Transfer end = {};          // norms, losses and flags
};

StepCosts step_costs(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates);

}  // namespace tessera::optim
