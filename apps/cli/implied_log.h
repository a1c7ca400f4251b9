// The log of a run with --report or --csv and without --log. Both are made from the log, so it is
// then written beside them: run.jsonl beside run.html.
#pragma once

#include "apps/cli/run_options.h"

namespace tessera::apps {

/// Sets options.log, if it is empty and a report or a table is asked for.
void imply_log(RunOptions& options);

/// Nobody named an implied log, so it may replace or continue only a log that an earlier run has
/// kept for the same report or table. Throws InputError if there is another file of its name.
void check_implied_log(const RunOptions& options);

}  // namespace tessera::apps
