// The log of a run as comma-separated values (RFC 4180): a row for each step, with the results of
// the evaluation after it. Columns are the members of the log's lines, in order of appearance; a
// value that a step does not have is empty.
#pragma once

#include <string>

namespace tessera::train {

/// Writes the table of `log` to `path`. Throws InputError as read_log does, and if `path` cannot be
/// written.
void write_csv(const std::string& log, const std::string& path);

}  // namespace tessera::train
