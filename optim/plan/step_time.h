// How long a step will take: a simple model, to compare settings and to see what is exposed.
//
// A rank computes on one line of time and communicates on another, which moves one transfer after
// the other, in the order in which they were asked for:
//
//   compute   update | forward | backward       | wait  | (norms) |
//   channel      gathers ...  | exchanges ............. |
//
//  - Forward and backward of a micro-batch take its operations / flops, plus the bytes that count
//    for element-wise passes / memory_bandwidth. A third is forward. A parameter's share is that
//    of its elements; a tied parameter's product is the head's, last in forward, first in backward,
//    while its gradient is complete when backward ends.
//  - Backward comes to buckets in the order of the layout; a bucket's exchange starts when it is
//    complete. Stages 2 and 3 wait for one of the ring's two places before they begin a bucket.
//  - A transfer takes latency x (N-1), for as many messages, and what it sends / bandwidth. What
//    goes to ranks of the own node goes at node_bandwidth. The owner adds what it receives at
//    memory_bandwidth, on the channel's time.
//  - The update moves what rule and state need at memory_bandwidth. Stage 0 gathers sums before it,
//    stages 1 and 2 parameters behind it, which the next forward waits for. Stage 3 gathers block
//    by block, the next while one is used.
//  - A step begins with the update of the one before it, so that steps follow each other alike.
#pragma once

#include <cstdint>

#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// What a micro-batch costs, forward and backward, where every parameter is trained.
struct MicroBatchWork {
  double flops = 0;             // operations of products and attention
  double recomputed_flops = 0;  // more of them, in a second forward within backward
  double bytes = 0;             // that the update moves while element-wise work is done
};

/// What a rank can do, a second. All are effective rates: what a run reaches.
struct MachineRates {
  double flops = 0;
  double bandwidth = 0;         // bytes that a rank sends; may be 0 for one rank
  double latency = 0;           // seconds of a message
  double memory_bandwidth = 0;  // 0: what only moves memory costs nothing
  double node_bandwidth = 0;    // within a node; 0: as between nodes
  int64_t ranks_per_node = 1;
  /// Whoever computes also communicates, as CPUs without a core to spare: communication adds to
  /// computing, as it does where the run has overlap off.
  bool shared_cores = false;
};

struct StepTime {
  double compute = 0;        // seconds: forward, backward, update
  double communication = 0;  // seconds that the channel is busy
  double exposed = 0;        // seconds of waiting
  double flops = 0;          // of the step, as counted above
  double moved_bytes = 0;    // in memory, the same
  double update_bytes = 0;   // of these, by the update

  double total() const { return compute + exposed; }
};

/// Of one rank in one step of input.batch. Throws InputError for rates that are not positive.
StepTime step_time(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates);

}  // namespace tessera::optim
