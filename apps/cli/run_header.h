// The header of a training application's log: the configuration of the run.
#pragma once

#include "apps/cli/run_options.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Returns the first members of the header: program, version and data.
JsonObject header_begin(const char* program, const RunOptions& options);
/// Adds the other members that all applications share: devices, distribution, training and files.
void add_run(JsonObject& header, const RunOptions& options, const dist::World& world);

}  // namespace tessera::apps
