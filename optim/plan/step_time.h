// The time of a step by a simple model: to compare settings, and to see how much communication is
// exposed.
//
// A rank computes on one time line and communicates on another, the channel, which runs one
// transfer at a time in the order of the calls:
//
//   compute   update | forward | backward       | wait  | (norms) |
//   channel      gathers ...  | exchanges ............. |
//
//  - Forward and backward of a micro-batch take its operations / flops, plus the bytes of its
//    element-wise passes / memory_bandwidth. A third is forward. A parameter's share is
//    proportional to its elements. The product of a tied parameter is that of the head, last in
//    forward and first in backward; its gradient is complete when backward ends.
//  - Backward reaches buckets in the order of the layout; a bucket's exchange starts when it is
//    complete. Stages 2 and 3 wait for one of the ring's two places before they begin a bucket.
//  - A transfer takes latency x (N-1), one message for each other rank, plus its bytes / bandwidth.
//    Bytes to ranks of the same node are sent at node_bandwidth. The owner adds what it receives at
//    memory_bandwidth, in the channel's time.
//  - The update moves its bytes at memory_bandwidth. Stage 0 gathers sums before it. Stages 1 and 2
//    gather parameters after it, and the next forward waits for them. Stage 3 gathers block by
//    block, each while the one before is used.
//  - A step begins with the update of the step before, so that all steps are alike.
#pragma once

#include <cstdint>

#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// The work of a micro-batch, forward and backward, if every parameter is trained.
struct MicroBatchWork {
  double flops = 0;             // operations of products and attention
  double recomputed_flops = 0;  // additional operations of a second forward within backward
  double bytes = 0;             // bytes that the update moves in the time of element-wise work
};

/// The rates of a rank, per second. All are effective rates, as a run reaches them.
struct MachineRates {
  double flops = 0;
  double bandwidth = 0;         // bytes that a rank sends; may be 0 for one rank
  double latency = 0;           // seconds per message
  double memory_bandwidth = 0;  // 0: moving memory costs nothing
  double node_bandwidth = 0;    // within a node; 0: as between nodes
  int64_t ranks_per_node = 1;
  /// The same cores compute and communicate, as on CPUs without a spare core. Then communication
  /// does not overlap with computing, as in a run with overlap off.
  bool shared_cores = false;
};

struct StepTime {
  double compute = 0;        // seconds: forward, backward, update
  double communication = 0;  // seconds that the channel is busy
  double exposed = 0;        // seconds in which computing waits
  double flops = 0;          // of the step, as counted above
  double moved_bytes = 0;    // in memory, as counted above
  double update_bytes = 0;   // the part of moved_bytes that the update moves

  double total() const { return compute + exposed; }
};

/// The time of one step of input.batch on one rank. Throws InputError for rates that are not valid.
StepTime step_time(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates);

}  // namespace tessera::optim
