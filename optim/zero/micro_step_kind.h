// Which micro-steps launch the same, so that one graph serves them all (docs/cuda.md).
#pragma once

#include <compare>
#include <cstdint>

#include "core/micro_batch.h"

namespace tessera::optim {

struct MicroStepKind {
  int64_t micro_batches;  // of the step, by whose number gradients are scaled
  bool first;             // of the step: gradient sums begin
  bool reduces_sums;      // no_sync: the local sums are sent
  int64_t contributors;
  bool contributes;

  auto operator<=>(const MicroStepKind&) const = default;
};

/// Graphs that a rank captures in `steps` steps, without no_sync: one for each kind of micro-step
/// that there is after the run's first, which runs without a graph.
int64_t graph_count(const Batch& batch, int64_t ranks, int64_t steps);

}  // namespace tessera::optim
