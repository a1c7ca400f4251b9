#include "apps/report_options.h"

#include <filesystem>
#include <system_error>

#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/console/flags.h"
#include "core/error.h"
#include "core/text/number_text.h"
#include "train/report/report_page.h"

namespace tessera::apps {

ReportCommandLine parse_report_command_line(int argc, const char* const* argv) {
  ReportCommandLine result;
  ReportOptions& options = result.options;
  Flags app("Draws runs, finished or still going on, as a page for a browser", "report");
  app.add_option("logs,--run", options.logs, "Logs of runs, FILE.jsonl, that --log wrote");
  app.add_option("--out", options.out,
                 "Page to write (default: for a single log, its path with the ending .html)");
  app.add_option("--names", options.names,
                 "Names of the runs on the page, separated by commas (default: the names of the "
                 "logs, without their endings)")
      ->list(',');
  app.add_option("--csv", options.csv, "Write the steps of one run as comma-separated values");
  app.add_option("--tensorboard", options.tensorboard,
                 "Write the events of one run to the folder DIR, for TensorBoard");
  app.add_examples(
      "report run.jsonl                          the page run.html\n"
      "report a.jsonl b.jsonl --out both.html    two runs in the same charts\n"
      "report run.jsonl --csv run.csv            a table, and no page\n");
  result.help = app.parse(argc, argv);
  if (!result.help.empty()) return result;
  if (options.logs.empty()) fail_input("a log is required: report run.jsonl");
  for (const std::string& log : options.logs) {
    if (train::is_report_page(log)) fail_input("{} is a report; give the log of its run", log);
  }
  if (!options.names.empty() && options.names.size() != options.logs.size()) {
    fail_input("--names has {} for {}", counted(std::ssize(options.names), "name"),
               counted(std::ssize(options.logs), "log"));
  }
  const bool other_form = !options.csv.empty() || !options.tensorboard.empty();
  if (other_form && options.logs.size() > 1) {
    fail_input("{} is for one run, but {} logs are given",
               options.csv.empty() ? "--tensorboard" : "--csv", options.logs.size());
  }
  if (other_form && options.out.empty() && !options.names.empty()) {
    fail_input("--names is for a page, but none is written; give --out, or leave out --names");
  }
  if (options.out.empty() && !other_form) {
    if (options.logs.size() > 1) {
      fail_input("--out is missing: name the page of {} runs", options.logs.size());
    }
    options.out = std::filesystem::path(options.logs.front()).replace_extension(".html").string();
    // An error of exists() is not reported: if there is one, reading the log or writing the page
    // will fail too.
    std::error_code error;
    if (std::filesystem::exists(options.out, error) && !train::is_report_page(options.out)) {
      fail_input("{} already exists and is not a report; name the page with --out", options.out);
    }
  }
  GivenPaths paths;
  for (const std::string& log : options.logs) paths.inputs.push_back({"report", log});
  paths.outputs = {{"--out", options.out},
                   {"--csv", options.csv},
                   {"--tensorboard", options.tensorboard}};
  check_paths(paths);
  return result;
}

}  // namespace tessera::apps
