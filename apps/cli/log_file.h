// Chooses the path of a run's log, and checks whether the log may replace or continue a file there.
#pragma once

#include "apps/cli/run_options.h"

namespace tessera::apps {

/// The report and the CSV table are made from the log. If --report or --csv is given without --log,
/// chooses the path options.log and sets options.log_implied. The path is that of the report, with
/// the extension .jsonl: run.jsonl for --report run.html. Without --report, the table's path is
/// used in the same way.
void imply_log(RunOptions& options);

/// Checks the file at the path of the log, if there is a file that is not empty. Throws InputError
/// in these cases:
///
///   - imply_log chose the path, but the file is not a log for this --report. The header of such a
///     log names a report with the same file name. If --report is not given, the header must name a
///     table with the same file name as --csv;
///   - the run resumes from a checkpoint, but the file is not the log of the run that wrote the
///     checkpoint: the file has no header, or names another program or model, another seed for the
///     last steps before the checkpoint, or another digest of the checkpoint. A log without this
///     seed or digest is accepted. If the checkpoint was imported, any log of the same model is
///     accepted.
void check_log_file(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
