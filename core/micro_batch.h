// How a training step's global batch is divided: M micro-batches, numbered m = 0 .. M-1. In
// micro-step j, rank r of N works on micro-batch j * N + r; there are k = ceil(M / N) micro-steps.
// The samples of a micro-batch are a function of (seed, step, m) alone, never of the rank.
#pragma once

#include <cstdint>

namespace tessera {

/// Sizes in samples (sequences, images); `global` is a multiple of `micro`.
struct Batch {
  int64_t global = 1;
  int64_t micro = 1;

  /// Throws InputError unless both sizes are positive and `global` is a multiple of `micro`.
  void validate() const;
  int64_t micro_batches() const { return global / micro; }              // M
  int64_t micro_steps(int64_t ranks) const;                             // k
  /// The number of ranks that have a micro-batch of their own in micro-step j. The remaining ranks
  /// repeat the last micro-batch of the step.
  int64_t contributors(int64_t ranks, int64_t micro_step) const;
};

/// One micro-batch as one rank sees it.
struct MicroBatch {
  int64_t step = 0;
  int64_t index = 0;         // m, in [0, M)
  int64_t micro_step = 0;    // j
  int64_t first_sample = 0;  // index of this micro-batch's first sample in the global batch
  int64_t samples = 0;
  float share = 1;           // fraction of the step's samples; scales the loss and the gradient
  /// False if no micro-batch is left for this rank, which happens only in the last micro-step. The
  /// rank then repeats the last micro-batch of the step, and the step leaves out this repetition's
  /// loss and gradient.
  bool contributes = true;
};

}  // namespace tessera
