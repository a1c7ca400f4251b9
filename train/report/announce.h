// Messages of a training run before its first step.
#pragma once

#include <string>

#include "dist/bootstrap.h"
#include "train/training_run.h"

namespace tessera::train {

/// Prints model and ranks, and the name of a GPU. On a CPU, warns of a precision that is slow on
/// this CPU, and calls announce_idle_offload if optimizer state is to be offloaded.
void announce_run(const TrainingRun& run, const std::string& model_name, const nn::Module& model,
                  const dist::World& world);
/// Says that `--offload` has no effect on a CPU.
void announce_idle_offload();
/// Warns if the micro-batches of a step do not divide evenly among the ranks, so that some ranks
/// will idle. Only runs that train call this function, not runs that only evaluate.
void warn_of_idle_ranks(const Batch& batch, const dist::World& world);

}  // namespace tessera::train
