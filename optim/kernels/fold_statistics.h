// The launcher that brings a step's statistics of batch normalisation into the running ones.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "optim/kernels/step_scalars.h"

namespace tessera {

/// Whose statistics come into the running ones.
struct StatisticsFold {
  int64_t ranks = 1;
  int64_t micro_steps = 1;
  int64_t micro_batches = 1;  // m = micro-step * ranks + rank
  float momentum = 0.1f;
};
/// For each micro-batch that had data, in order of m: running (S) = (1 - momentum) * running +
/// momentum * its own. observed f32 (ranks, micro_steps, S + 1): S values, then 1 where there was
/// data, else 0. Nothing changes where `scalars`, which may be null, say skip.
TESSERA_KERNEL(fold_statistics, const Tensor& running, const Tensor& observed,
               const StatisticsFold& fold, const StepScalars* scalars)

}  // namespace tessera
