// What a training run says of itself before its first step.
#pragma once

#include <string>

#include "dist/bootstrap.h"
#include "train/training_run.h"

namespace tessera::train {

/// Model, ranks and device, and warnings of what is allowed but slow.
void announce_run(const TrainingRun& run, const std::string& model_name, const nn::Module& model,
                  const dist::World& world);

}  // namespace tessera::train
