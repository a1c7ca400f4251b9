// Writes the log of a run as comma-separated values (RFC 4180). Each step has a row, with the
// results of the evaluation after the step, if there was one. The columns are the members of the
// log's step and evaluation lines, in order of first appearance, without "type", lists and objects.
// If step lines have a member of the same name, an evaluation's column has the prefix "eval_". If a
// step has no value for a column, the cell is empty.
#pragma once

#include <string>

namespace tessera::train {

/// Writes the table of `log` to `path`. Throws InputError if the log has no step. Also throws as
/// read_log does, and as OutputFile does if `path` cannot be written.
void write_csv(const std::string& log, const std::string& path);

}  // namespace tessera::train
