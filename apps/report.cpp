// Draws the logs of runs as a page for a browser, or converts one log to CSV or TensorBoard events.
//
//   report run.jsonl
//   report stage0.jsonl stage3.jsonl --out stages.html
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/console/console.h"
#include "apps/report_options.h"
#include "core/error.h"
#include "train/report/csv.h"
#include "train/report/log_reader.h"
#include "train/report/progress.h"
#include "train/report/report_page.h"
#include "train/report/tensorboard.h"

namespace tessera::apps {
namespace {

double seconds_of(const nlohmann::ordered_json& line) {
  const auto step_ms = line.find("step_ms");
  return step_ms != line.end() && step_ms->is_number() ? step_ms->get<double>() / 1000 : 0;
}

// Returns when a run began, in seconds since 1970. Logs do not say when, so this is the time when
// the log was last written, less the time of all steps. Throws InputError if there is no step.
double begin_of(const std::string& log) {
  double seconds = 0;
  bool has_step = false;
  train::read_log(log, [&](const nlohmann::ordered_json& line) {
    seconds += seconds_of(line);
    has_step = has_step || line["type"] == "step";
  });
  if (!has_step) fail_input("{}: the run has logged no step yet", log);
  struct stat status {};
  if (::stat(log.c_str(), &status) != 0) fail_input("{}: {}", log, std::strerror(errno));
  const auto nanoseconds = static_cast<double>(status.st_mtim.tv_nsec);
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * nanoseconds - seconds;
}

void write_events(const std::string& log, const std::string& folder) {
  // TensorBoard draws curves over the times of events. So each event gets the time of its step, not
  // the time of this conversion.
  double time = begin_of(log);
  train::TensorBoardWriter writer(folder, 0, time);
  try {
    train::read_log(log, [&](const nlohmann::ordered_json& line) {
      time += seconds_of(line);
      writer.set_time(time);
      writer.add(line);
    });
    // A training run continues after a failed write of events, but here the events are the result.
    if (writer.failed()) fail("{}: the events could not all be written", writer.path());
  } catch (const std::exception&) {
    std::error_code ignored;
    std::filesystem::remove(writer.path(), ignored);
    throw;
  }
  fmt::print("{}\n", writer.path());
}

void run(int argc, char** argv) {
  train::set_up_messages(true);
  const auto [options, help] = parse_report_command_line(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    return;
  }
  if (!options.csv.empty()) {
    train::write_csv(options.logs.front(), options.csv);
    fmt::print("{}\n", options.csv);
  }
  if (!options.tensorboard.empty()) write_events(options.logs.front(), options.tensorboard);
  if (options.out.empty()) return;
  std::vector<train::ReportedRun> runs;
  for (size_t i = 0; i < options.logs.size(); ++i) {
    runs.push_back({options.logs[i], options.names.empty() ? "" : options.names[i]});
  }
  train::write_report_page(runs, options.out);
  fmt::print("{}\n", options.out);
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::apps::run_alone([&] { tessera::apps::run(argc, argv); });
}
