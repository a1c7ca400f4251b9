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

/// Returns true if all steps of the run are done. Then says so, and warns if --report, --csv,
/// --tensorboard, --trace or --save was given, or --log with a file that does not exist, because
/// their files are not written. With --eval-only returns false.
bool nothing_left(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
