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
///   - imply_log chose the path, but the header of the log does not name the report (--report) or,
///     if there is no report, the table (--csv). Names are compared without their folders.
///   - The run resumes from a checkpoint, but the file is not a log of the checkpoint's program, or
///     had another model in the last steps before the checkpoint. If the checkpoint was imported,
///     the program is not compared. If the log has no steps before the checkpoint, the model in its
///     first line is compared, except for settings that --resume-changed names.
///   - The run resumes from a checkpoint that was not imported, but the log is of another run: the
///     log's seed in the last steps before the checkpoint, or its digest for the checkpoint's step,
///     is not that of the checkpoint. A seed or digest that the log lacks is not compared.
void check_log_file(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
