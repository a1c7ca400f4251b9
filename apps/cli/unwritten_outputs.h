// Warns of output files that a training command asks for but does not write. There are two cases:
// --plan is given, or no step is left because the run resumes from a checkpoint of its last step or
// of a later one. If the checkpoint is of exactly the last step, the file of --save is still
// written, from the checkpoint.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/resume.h"
#include "apps/cli/run_options.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Returns the given flags that ask for output files, such as "--log" and "--save". Leaves out
/// --checkpoint. Also leaves out --log if imply_log (log_file.h) chose the log, not the user.
std::vector<std::string> output_flags(const RunOptions& options);

/// Warns that --plan writes nothing for the given flags that ask for output files, including
/// --checkpoint. If --offload is given but the run would compute on a CPU, also prints what the run
/// itself would print: that --offload has no effect.
void warn_of_plan(const RunOptions& options);

/// The part of a training command that is left to do.
enum class Left {
  steps,  // or, with --eval-only, the evaluation
  save,   // only --save: the run may have been killed after its last checkpoint, before its save
  nothing,
};

/// Returns what the run has to do. With --eval-only, that is always Left::steps. Otherwise, if the
/// checkpoint already has all steps, stops handling the signals that ask for checkpoints, and warns
/// of given flags whose output will not be written:
///
///   - --report, --csv, --tensorboard, --trace, --save-every, --save-best, and `others`, which are
///     further given flags that ask for output, such as "--sample" of train_gpt;
///   - --log if its file does not exist;
///   - --checkpoint if the run resumes from a checkpoint in another folder.
///
/// Throws InputError if --save is given but the checkpoint has more steps than the run.
Left left_to_do(const RunOptions& options, const Resumed& resumed,
                const std::vector<std::string>& others = {});

/// Ends a run that had only --save left. Every rank must make this call. `failure` is the result of
/// save_or_rescue. If `failure` is empty, prints which checkpoint the weights are from. Otherwise
/// ends the job with the error `failure` (throw_failure).
void end_save(const std::string& failure, const RunOptions& options, const Resumed& resumed,
              const dist::World& world);

}  // namespace tessera::apps
