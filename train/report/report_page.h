// The report of one or several runs: one HTML file that needs no network. The file contains the
// data that read_history finds in the logs, and the scripts that draw the data
// (train/report/page/).
#pragma once

#include <string>
#include <vector>

namespace tessera::train {

struct ReportedRun {
  std::string log;        // path of the run's log
  std::string name = {};  // empty: the log's file name without its extension
};

/// Writes the page to `path`. The curves of several runs are drawn into the same charts. Throws as
/// read_history does, and as OutputFile does if `path` cannot be written.
void write_report_page(const std::vector<ReportedRun>& runs, const std::string& path);

/// Returns true if the file is a regular file that begins like a page of write_report_page.
bool is_report_page(const std::string& path);

}  // namespace tessera::train
