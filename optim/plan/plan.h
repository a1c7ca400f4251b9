// What a run will hold and send, to the byte, before it starts. A formula over ShardLayout that
// shares nothing else with the optimizer: tests hold what was measured against it.
//
//   Plan plan = optim::plan({.parameters = plan_parameters(model), .ranks = 64, .stage = 3,
//                            .batch = {.global = 512, .micro = 4}}, 0);
//   plan.memory();      // bytes of rank 0, but for activations
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "dist/traffic.h"
#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// What the categories of memory consist of, in bytes of one rank.
struct PlanParts {
  // parameters
  int64_t values = 0;         // stages 0 to 2: all; stage 3: the own shard
  int64_t running = 0;        // statistics of batch norms
  int64_t gathered = 0;       // stage 3: the blocks that are there at once, at most
  // gradients
  int64_t buckets = 0;        // of the running micro-batch. Stages 2 and 3: ring and tied slots
  int64_t accumulators = 0;   // the own shard of the step's sum
  int64_t local_sums = 0;     // no_sync with more than one micro-step
  int64_t gathered_sums = 0;  // stage 0, where sums have another dtype than gradients
  // optimizer state
  int64_t masters = 0;        // f32 weights
  int64_t state = 0;
  // communication
  int64_t staging = 0;        // of the transport
  int64_t scattered = 0;      // fast reduction
  int64_t norms = 0;
  int64_t losses = 0;
  int64_t statistics = 0;     // of a step's micro-batches, and of the running one
  int64_t flags = 0;          // on the host
  int64_t scalars = 0;        // with a GPU: what a step ends with, there,
  int64_t fetched = 0;        // and its copies on the host
  int64_t crossing = 0;       // offload: sums and weights between device and host
  int64_t texts = 0;          // checkpoints, saves: what ranks tell each other of them, on the host
  int64_t saved = 0;          // saves: the largest bucket in f32, while it is gathered
  int64_t mirrors = 0;        // staged: of the largest calls, and the staging of the host
};

/// Bytes of one rank: what the optimizer and the communicator hold, and what the rank sends.
struct Plan {
  int64_t rank = 0;
  // Peaks by category, of the device that computes.
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
  int64_t communication = 0;
  int64_t checkpoint = 0;  // on the host, wherever ranks compute
  /// Peaks that follow from the model's operations; absent where no formula was asked.
  std::optional<int64_t> activations = std::nullopt;
  std::optional<int64_t> workspace = std::nullopt;
  /// Of a GPU's rank on the host: what offload puts there, what hosts tell each other, what passes
  /// through the host on its way to other ranks, and inputs that the GPU copies from there.
  struct Host {
    int64_t optimizer_state = 0;
    int64_t communication = 0;
    int64_t activations = 0;
    int64_t memory() const { return optimizer_state + communication + activations; }
  } host = {};
  /// Workspace on the CPU that giving 16-bit parameters their first values takes, before any step;
  /// none on a rank that holds no element of them.
  int64_t filling = 0;
  PlanParts parts = {};
  int64_t padding = 0;  // of parameters: what holds no parameter
  std::array<int64_t, dist::traffic_count> traffic{};  // sent in one step, by dist::Traffic
  /// What of it makes the update known to all: a step without an update does not send it.
  std::array<int64_t, dist::traffic_count> update_traffic{};
  /// What one save of the weights sends besides, where the run has saves.
  std::array<int64_t, dist::traffic_count> save_traffic{};

  /// Of the device, but for checkpoints: what optimizer and communicator hold; with activations and
  /// workspace, as far as these are known, an upper bound of all at once.
  int64_t memory() const { return parameters + gradients + optimizer_state + communication; }
  int64_t peak() const { return memory() + activations.value_or(0) + workspace.value_or(0); }
  int64_t sent() const;
};

/// Throws InputError where a number of bytes is beyond int64.
Plan plan(const PlanInput& input, int64_t rank);

/// Graphs that a rank captures in `steps` steps: one for each kind of micro-step that there is
/// after the run's first, which runs without a graph (docs/cuda.md). With no_sync the last
/// micro-step, which sends the local sums, is of a kind of its own.
int64_t graph_count(const Batch& batch, int64_t ranks, int64_t steps, bool no_sync = false);

}  // namespace tessera::optim
