// Estimates the time of a step with a simple model. The estimate helps to compare settings, and to
// see how much communication does not overlap with computing. Row-sparse tables are left out.
//
// A rank has two time lines: one for computing, and one for communication, called the channel. The
// channel runs one transfer at a time, in the order in which the transfers were started:
//
//   compute   update | forward | backward       | wait  |
//   channel      gathers ...  | exchanges ............. |
//
//  - Forward and backward of a micro-batch take (work.flops / rates.flops) + (work.bytes /
//    memory_bandwidth) seconds. A third of this time is forward. Recomputing activations takes
//    additional time in backward. A parameter's share of the time is proportional to its elements.
//    A tied parameter is assumed to be the weight of the head, the model's output layer. The head
//    is last in forward and first in backward. The gradient of a tied parameter is complete when
//    backward ends.
//  - Backward reaches buckets in the order of the layout. A bucket's exchange starts when its
//    gradient is complete. At stages 2 and 3 a ring buffer has memory for two buckets
//    (RingGradients). So the backward of a bucket waits until the bucket two places earlier has
//    been sent.
//  - On N ranks a transfer takes latency x (N-1), for one message to each other rank, plus
//    bytes / bandwidth. Bytes to ranks of the same node are sent at node_bandwidth. The owner of a
//    shard adds the received gradients to its sum. These additions move bytes at memory_bandwidth,
//    and the channel is busy during them.
//  - The update goes from bucket to bucket, and moves its bytes at memory_bandwidth. At stage 0, a
//    bucket's gradient sums are gathered before its update. At stages 1 and 2, its parameters are
//    gathered after its update, and forward waits for them when it reaches the bucket. Stage 3
//    gathers together the buckets of a block of the model (Module::begin_block), while the block
//    before it is computed.
//  - The simulated step begins with the previous step's update, because the gathers of this update
//    overlap with forward.
#pragma once

#include <cstdint>

#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// The work of a micro-batch, forward and backward, if every parameter is trained.
struct MicroBatchWork {
  double flops = 0;             // operations of matrix products and attention
  double recomputed_flops = 0;  // additional operations of a second forward within backward
  double bytes = 0;             // element-wise work, converted to bytes moved in memory
};

/// The rates that a rank reaches in a run, per second.
struct MachineRates {
  double flops = 0;
  double bandwidth = 0;         // bytes that a rank sends; may be 0 if there is only one rank
  double latency = 0;           // seconds per message
  double memory_bandwidth = 0;  // 0: moving memory costs nothing
  double node_bandwidth = 0;    // bytes sent within a node; 0: equal to bandwidth
  int64_t ranks_per_node = 1;
  /// True if the same cores compute and communicate, as on CPUs without a spare core. Then
  /// communication does not overlap with computing.
  bool shared_cores = false;
};

struct StepTime {
  double compute = 0;        // seconds: forward, backward, update
  double communication = 0;  // seconds that the channel is busy
  double exposed = 0;        // seconds in which computing waits
  double flops = 0;          // operations of the step
  double moved_bytes = 0;    // bytes that the step moves in memory
  double update_bytes = 0;   // the part of moved_bytes that the update moves

  double total() const { return compute + exposed; }
};

/// Returns the time that each of the input.ranks ranks takes for one step of input.batch. Throws
/// InputError for invalid rates. Throws for an invalid input as plan_groups does.
StepTime step_time(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates);

}  // namespace tessera::optim
