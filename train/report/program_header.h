// The header of the log for programs that do not write their own header.
#pragma once

#include <string>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/training_run.h"

namespace tessera::train {

/// Returns the first line of a log. The line has the members that a report of the run draws: the
/// program, ranks, threads, device, stage, steps, batch sizes, and the owners of all parameters. A
/// program may add members, and the report lists these among the settings.
JsonObject program_header(const std::string& program, const TrainingRun& run,
                          const dist::World& world, const optim::ZeroOptimizer& optimizer);

}  // namespace tessera::train
