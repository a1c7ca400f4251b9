// Messages of a training run before its first step.
#pragma once

#include <string>

#include "dist/bootstrap.h"
#include "train/training_run.h"

namespace tessera::train {

/// Prints model, ranks and device, and warns of settings that are allowed but slow.
void announce_run(const TrainingRun& run, const std::string& model_name, const nn::Module& model,
                  const dist::World& world);

}  // namespace tessera::train
