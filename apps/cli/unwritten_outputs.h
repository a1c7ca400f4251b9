// Warns of output files that a training command asks for but does not write. The files are not
// written if the command takes no step: with --plan, or if a checkpoint already has all steps.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/resume.h"
#include "apps/cli/run_options.h"

namespace tessera::apps {

/// Returns the given flags that ask for output files, such as "--log" and "--save". Leaves out
/// --checkpoint. Also leaves out --log if imply_log (log_file.h) chose the log, not the user.
std::vector<std::string> output_flags(const RunOptions& options);

/// Warns that --plan writes nothing for the given flags that ask for output files, including
/// --checkpoint.
void warn_of_plan(const RunOptions& options);

/// Returns true if the checkpoint already has all steps of the run and --eval-only was not given.
/// In this case, warns of each given flag whose output will not be written: --report, --csv,
/// --tensorboard, --trace, --save, --save-every and --save-best. Also warns of --log if its file
/// does not exist, and of --checkpoint if the run resumes from a checkpoint in another folder.
/// `others` are further given flags that ask for output, such as "--sample" of train_gpt.
bool nothing_left(const RunOptions& options, const Resumed& resumed,
                  const std::vector<std::string>& others = {});

}  // namespace tessera::apps
