// Chooses the path of a run's log, and checks whether the log may replace or continue a file there.
#pragma once

#include "apps/cli/run_options.h"

namespace tessera::apps {

/// The report and the CSV table are made from the log. If --report or --csv is given without --log,
/// chooses the path options.log and sets options.log_implied. The path is that of the report, with
/// the extension .jsonl: run.jsonl for --report run.html. Without --report, it is derived from the
/// path of the table.
void imply_log(RunOptions& options);

/// Checks a file that exists at the path of the log and is not empty. Throws InputError in these
/// cases:
///
///   - imply_log chose the path, and the file is not the log of a run whose --report named a file
///     of the same name as this run's --report. Without --report, the names of the files of --csv
///     are compared instead;
///   - the run resumes from a checkpoint, and the file is not a log of the checkpoint's model.
void check_log_file(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
