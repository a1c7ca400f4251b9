// The output files that a training application's command asks for. A command that takes no step
// writes only some of these files. The functions below warn of the files that are not written.
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
/// of each given flag whose output will not be written: --report, --csv, --tensorboard, --trace,
/// --save, --save-every and --save-best; --log if its file does not exist; --checkpoint if the
/// checkpoint to resume from is in another folder. `others` lists further given flags of the
/// calling application that ask for output, such as "--sample".
bool nothing_left(const RunOptions& options, const Resumed& resumed,
                  const std::vector<std::string>& others = {});

}  // namespace tessera::apps
