// What a run will hold and send, to the byte, before it starts. A formula over ShardLayout that
// shares nothing else with the optimizer: tests hold what was measured against it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/memory.h"
#include "dist/shard_layout.h"
#include "dist/traffic.h"
#include "nn/module.h"
#include "optim/micro_batch.h"
#include "optim/zero_optimizer.h"

namespace tessera::optim {

struct PlanInput {
  std::vector<dist::LayoutParameter> parameters = {};  // in order of registration
  int64_t ranks = 1;
  int stage = 2;
  int64_t bucket_bytes = int64_t{4} << 20;
  Reduction reduction = Reduction::ordered;
  bool no_sync = false;
  Batch batch = {};
  int64_t state_tensors = 2;  // of the update rule: Adam's two moments
};

/// Bytes of one rank. Memory covers what the optimizer and the communicator hold; activations and
/// workspace belong to the model and are measured only.
struct Plan {
  int64_t rank = 0;
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
  int64_t communication = 0;  // staging and the buffers of norms and losses
  int64_t padding = 0;        // of these, elements that hold no parameter, in bytes of parameters
  std::array<int64_t, dist::traffic_count> traffic{};  // sent in one step, by dist::Traffic

  int64_t memory() const { return parameters + gradients + optimizer_state + communication; }
  int64_t sent() const;
};

std::vector<dist::LayoutParameter> layout_parameters(const nn::Module& model);
Plan plan(const PlanInput& input, int64_t rank);

}  // namespace tessera::optim
