// The header of the log of a program that has no header of its own.
#pragma once

#include <string>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/training_run.h"

namespace tessera::train {

/// Returns the first line of a log, with what a report of the run draws: the program, ranks,
/// threads, device, stage, steps, batch sizes, and the owners of all parameters.
/// Members that a program adds are listed among the report's settings.
JsonObject program_header(const std::string& program, const TrainingRun& run,
                          const dist::World& world, const optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
