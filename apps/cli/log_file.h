// The log of a run: where it is written, and which existing file it may replace or continue.
#pragma once

#include "apps/cli/run_options.h"

namespace tessera::apps {

/// --report and --csv are made from the log. If one of them is given without --log, sets
/// options.log to a file beside it: run.jsonl beside run.html.
void imply_log(RunOptions& options);

/// Checks an existing file of the log's name. Throws InputError in these cases:
///
///   - imply_log chose the name, and the file is not a log that an earlier run has kept for the
///     same report or table;
///   - the run goes on from a checkpoint, and the file is no log or that of another model.
void check_log_file(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
