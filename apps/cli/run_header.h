// Lines of a training application's log: the header, which has the configuration of the run, and
// the epoch in the lines of evaluations.
#pragma once

#include <optional>
#include <string>

#include "apps/cli/run_options.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Returns the first members of the header: type, program, version and data.
JsonObject header_begin(const char* program, const RunOptions& options);
/// Adds the other members that all applications share: devices, distribution, training and files.
void add_run(JsonObject& header, const RunOptions& options, const dist::World& world);
/// Adds the number of finished epochs to the line of an evaluation. Returns the text with which the
/// message to the user begins, such as "epoch 1.5  ". With nullopt, adds nothing and returns "".
std::string add_epoch(JsonObject& line, const std::optional<double>& epochs);

}  // namespace tessera::apps
