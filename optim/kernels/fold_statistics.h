// Launcher that updates the running statistics with the batch-norm statistics of a step.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "optim/kernels/step_scalars.h"

namespace tessera {

/// The layout of the observed statistics, and the momentum of the update.
struct StatisticsFold {
  int64_t ranks = 1;
  int64_t micro_steps = 1;
  int64_t micro_batches = 1;
  float momentum = 0.1f;
};
/// In micro-step s, rank r has micro-batch m = s * ranks + r, or none if m >= micro_batches. A
/// micro-batch may have had no data (ZeroOptimizer::skip). Computes, for each micro-batch m with
/// data, in order of m:
///   running = (1 - momentum) * running + momentum * statistics of m
/// running is f32 (S), where S is the number of running values. observed is f32 (ranks,
/// micro_steps, S + 1): for each micro-batch S values, and then 1 if the micro-batch had data, else
/// 0. If scalars->skip is set, nothing changes. `scalars` may be null.
TESSERA_KERNEL(fold_statistics, const Tensor& running, const Tensor& observed,
               const StatisticsFold& fold, const StepScalars* scalars)

}  // namespace tessera
