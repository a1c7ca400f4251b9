// Output files of a training application that a command asks for, and warnings about those that the
// command does not write, because it takes no step.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/resume.h"
#include "apps/cli/run_options.h"

namespace tessera::apps {

/// Returns the flags that ask for output files, except --checkpoint: "--log", "--save", ... A log
/// that imply_log chose does not count.
std::vector<std::string> output_flags(const RunOptions& options);

/// Warns of all outputs that the command asks for, because --plan writes none.
void warn_of_plan(const RunOptions& options);

/// Returns true if all steps of the run are done and --eval-only was not given. In this case, warns
/// of each output that was asked for but will not be written: those of --report, --csv,
/// --tensorboard, --trace and --save, and that of --log if the file does not exist.
bool nothing_left(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
