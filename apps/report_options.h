// Parses and checks the command line of `report`.
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

struct ReportOptions {
  std::vector<std::string> logs;
  std::vector<std::string> names;  // as many as logs, or none
  std::string out;                 // path of the HTML page; empty: no page is written
  std::string csv;
  std::string tensorboard;
};

struct ReportCommandLine {
  ReportOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if an argument or a flag is missing or invalid.
ReportCommandLine parse_report_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
