// Predicts the memory and traffic of a run, to the byte, before the run starts. A plan is computed
// from Batch, ShardLayout and, for row-sparse tables, RowLayout. Apart from these classes and the
// sizes that core/ and dist/ declare, the plan shares no code with the optimizer. So a comparison
// of plan and measurements can find bugs in the plan and in the optimizer.
//
//   Plan plan = optim::plan({.parameters = plan_parameters(model), .ranks = 64, .stage = 3,
//                            .batch = {.global = 512, .micro = 4}}, 0);
//   plan.memory();      // bytes of rank 0 on its device, without activations and workspace
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "dist/traffic.h"
#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// The parts of each memory category, in bytes of one rank.
struct PlanParts {
  // parameters
  int64_t values = 0;         // stages 0 to 2: all values; stage 3: this rank's shard
  int64_t running = 0;        // running statistics of batch norms
  int64_t looked_up = 0;      // row-sparse tables: rows of the current micro-batch
  int64_t gathered = 0;       // stage 3: the most that is gathered at any time (gathered_elements)
  // gradients
  int64_t buckets = 0;        // a micro-batch's gradients: gradient_elements()
  int64_t accumulators = 0;   // this rank's shard of the step's gradient sum
  int64_t local_sums = 0;     // no_sync with several micro-steps: the rank's own gradient sums
  int64_t gathered_sums = 0;  // stage 0: gathered sums, if sums and gradients differ in dtype
  // optimizer state
  int64_t masters = 0;        // f32 master weights
  int64_t state = 0;
  // communication
  int64_t rows = 0;           // row-sparse tables: rows that are sorted, sent and received
  int64_t host_rows = 0;      // with a GPU: host memory for rows; `rows` is then on the device
  int64_t staging = 0;        // buffers of the transport
  int64_t scattered = 0;      // fast reduction: the result of a reduce-scatter
  int64_t norms = 0;
  int64_t losses = 0;
  int64_t statistics = 0;     // batch statistics of the current micro-batch and of the whole step
  int64_t flags = 0;          // on the host
  int64_t scalars = 0;        // with a GPU: the scalars of a step on the device
  int64_t fetched = 0;        // with a GPU: copies of the scalars on the host
  int64_t crossing = 0;       // offload: copies of gradient sums and weights, on the host
  int64_t texts = 0;          // checkpoints, saves: buffer to exchange texts, on the host
  int64_t saved = 0;          // saves: the largest bucket or row-sparse table, in f32
  int64_t mirrors = 0;        // PlanInput::staged: host copies of buffers, and MPI's staging
};

/// The memory of one rank's optimizer and communicator, and the traffic that the rank sends, in
/// bytes.
struct Plan {
  int64_t rank = 0;
  // Peaks by category, on the device that computes.
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
  int64_t communication = 0;
  int64_t checkpoint = 0;  // on the host, also if ranks compute on GPUs
  /// Peaks that depend on the model's operations; nullopt if unknown. plan() leaves them empty.
  std::optional<int64_t> activations = std::nullopt;
  std::optional<int64_t> workspace = std::nullopt;
  /// Host memory that the members above do not count.
  struct Host {
    /// With offload: master weights and the state of the update rule.
    int64_t optimizer_state = 0;
    /// The sum of `crossing`, `fetched`, `mirrors` and `host_rows` of PlanParts. With a GPU, also
    /// `flags` and `texts`.
    int64_t communication = 0;
    /// With a GPU: the inputs that are copied to the GPU. plan() leaves this 0.
    int64_t activations = 0;
    int64_t memory() const { return optimizer_state + communication + activations; }
  } host = {};
  /// CPU workspace for writing the first values of 16-bit parameters, before any step. 0 on a rank
  /// that computes on a GPU, and on a rank that holds no element of a 16-bit parameter.
  int64_t filling = 0;
  PlanParts parts = {};
  int64_t padding = 0;  // part of `parameters`: gaps and padding of buckets (dist/shard_layout.h)
  /// Bytes that one step sends, indexed by dist::Traffic. Rows of row-sparse tables are not
  /// included, because their number depends on the data (optim/plan/plan_tables.h). Traffic::other
  /// is not planned either. The first steps send it to agree on the order of buckets.
  std::array<int64_t, dist::traffic_count> traffic{};
  /// The part of `traffic` that gathers gradient sums for the update (stage 0) or parameters after
  /// the update (stages 1 and 2). A step without an update does not send this part.
  std::array<int64_t, dist::traffic_count> update_traffic{};
  /// Bytes that each save of the weights sends, in addition to `traffic`, without the texts that
  /// the ranks exchange about the save's success (Traffic::other). 0 if the run has no saves.
  std::array<int64_t, dist::traffic_count> save_traffic{};

  /// Returns the bytes that optimizer and communicator hold on the device, without checkpoints.
  int64_t memory() const { return parameters + gradients + optimizer_state + communication; }
  /// Returns memory() plus activations and workspace, as far as they are known. If both are known,
  /// this is an upper bound, because the categories need not peak at the same time.
  int64_t peak() const { return memory() + activations.value_or(0) + workspace.value_or(0); }
  /// Bytes that the whole run sends for rows of row-sparse tables. tables_traffic() computes these
  /// bytes from the rows that the run has counted. plan() leaves them 0.
  std::array<int64_t, dist::traffic_count> counted_traffic{};
  /// Returns the sum of `traffic`.
  int64_t sent() const;
};

/// Returns the plan of one rank. Throws InputError if a number of bytes exceeds int64, or if graphs
/// are requested on the CPU. Throws Error for an invalid input or rank.
Plan plan(const PlanInput& input, int64_t rank);

/// Returns the number of graphs that a rank captures in `steps` steps: one for each kind of
/// micro-step that occurs after the run's first micro-step. The run's first micro-step has no graph
/// (docs/cuda.md). Micro-steps are of the same kind if they agree in
///   - whether the micro-step is the first of a step;
///   - the number of contributing ranks;
///   - with no_sync, whether the micro-step is the last of a step.
int64_t graph_count(const Batch& batch, int64_t ranks, int64_t steps, bool no_sync = false);

}  // namespace tessera::optim
