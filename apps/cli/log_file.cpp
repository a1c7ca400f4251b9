#include "apps/cli/log_file.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/cli/changed_settings.h"
#include "core/error.h"
#include "core/text/json_line.h"
#include "train/report/log_reader.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The flag that needs the log, --report or --csv, and the path that was given with this flag.
struct KeptFor {
  const char* flag;
  const std::string& path;
};
KeptFor kept_for(const RunOptions& options) {
  if (options.report.empty()) return {"csv", options.csv};
  return {"report", options.report};
}

// Returns the header, which is the first line of a log. If there is none, returns an empty object.
Json header_of(const std::string& path) {
  std::string line;
  std::ifstream file(path, std::ios::binary);
  std::getline(file, line);
  Json header = train::parse_log_line(line);
  if (header.is_object() && header.value("type", Json()) == "header") return header;
  return Json::object();
}

void check_implied(const RunOptions& options, const Json& header) {
  const auto [flag, path] = kept_for(options);
  const auto member = header.find(flag);
  // The header was written with json_string, which replaces bytes that are not UTF-8. So the given
  // name is compared after the same replacement.
  const auto written = Json::parse(json_string(path)).get<std::string>();
  const bool is_ours =
      member != header.end() && member->is_string() &&
      fs::path(member->get<std::string>()).filename() == fs::path(written).filename();
  if (is_ours) return;
  fail_input(
      "--{} {} keeps its log in {}, which already exists and was not written for {}; name "
      "another log with --log",
      flag, path, options.log, path);
}

// What a log tells about a checkpoint and the run that saved it.
struct LoggedRun {
  // The header or `resume` line of the run in the last steps before the checkpoint. An empty object
  // if the log has no such steps.
  Json header = Json::object();
  std::vector<std::string> digests;  // the checkpoint's digest in `checkpoint` and `resume` lines
};

// Returns what the log tells about a checkpoint of step `step`. The header is the last header or
// `resume` line before the checkpoint. Such a line is before the checkpoint if the line of step
// `step`, or of an earlier step, follows it in the log. A `resume` line is also before the
// checkpoint if it resumes from an earlier step than `step`. A line that resumes from `step` itself
// comes after the checkpoint, and its seed and dropout may be new. Invalid lines are skipped,
// because RunLog removes or refuses them.
LoggedRun logged_run(const std::string& path, int64_t step) {
  LoggedRun logged;
  Json newest = Json::object();  // becomes the header if it is before
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    Json json = train::parse_log_line(line);
    if (!json.is_object()) continue;
    const auto member = [&](const char* name) { return json.value(name, Json()); };
    const Json type = member("type");
    const Json number = member("step");
    const int64_t at = number.is_number_integer() ? number.get<int64_t>() : -1;
    const bool resumes = type == "resume";
    const Json digest = member("digest");
    if ((type == "checkpoint" || resumes) && at == step && digest.is_string()) {
      logged.digests.push_back(digest.get<std::string>());
    }
    if (type == "header" || resumes) newest = std::move(json);
    const bool is_earlier_step = type == "step" && at <= step;
    const bool is_before = is_earlier_step || (resumes && at < step);
    if (is_before && !newest.empty()) logged.header = std::exchange(newest, Json::object());
  }
  return logged;
}

// Refuses a file that is no log, and the log of another program. This check comes before the
// comparison of settings, which would report only that a setting differs.
void check_program(const std::string& path, const Json& header, const Resumed& resumed) {
  if (header.empty()) {
    fail_input("{} is not the log of a run, or its first line is damaged; name another log", path);
  }
  const std::optional<std::string> expected = resumed.program();
  const auto program = header.find("program");
  if (!expected || program == header.end() || !program->is_string()) return;
  const auto found = program->get<std::string>();
  if (found == *expected) return;
  fail_input("{} is the log of {}, expected one of {}; name another log", path, found, *expected);
}

// Returns the model's settings in the header of a log, with names such as "model.layers".
dist::Settings model_settings(const Json& header) {
  dist::Settings settings;
  const Json model = header.value("model", Json::object());
  for (const auto& [name, value] : model.items()) {
    const bool is_text = value.is_string();
    settings.push_back({"model." + name, is_text ? value.get<std::string>() : value.dump()});
  }
  return settings;
}

// Refuses the log of another model than the checkpoint's. `first` is the first line of the log. It
// is compared if the log has no line before the checkpoint. An earlier start of the same command
// may have begun this log, so settings that --resume-changed names may then differ.
void check_model(const RunOptions& options, const Json& first, const LoggedRun& logged,
                 const Resumed& resumed) {
  const std::vector<std::string>& accepted = options.checkpoints.changed;
  const bool is_before = !logged.header.empty();
  const dist::Settings model = model_settings(is_before ? logged.header : first);
  for (const auto& [name, value] : resumed.manifest().run) {
    if (!name.starts_with("model.")) continue;
    const std::string there = setting_value(model, name);
    if (there == value || (is_recent(name) && !has_setting(model, name))) continue;
    if (!is_before && std::ranges::find(accepted, name) != accepted.end()) continue;
    fail_input(
        "{} is the log of another run: {} is {} there, and {} in the checkpoint; name "
        "another log",
        options.log, name, there, value);
  }
}

// Refuses the log of a run that did not write the checkpoint. Such a log has another seed than the
// checkpoint, or has another digest for the checkpoint's step. An imported checkpoint was written
// by no run, so this function accepts any log for it.
void check_same_run(const std::string& path, const LoggedRun& logged, const Resumed& resumed) {
  const train::Manifest& manifest = resumed.manifest();
  if (!manifest.imported.empty()) return;
  const std::string seed = setting_value(manifest.run, "seed");
  const Json there = logged.header.value("seed", Json());
  if (!there.is_null() && has_setting(manifest.run, "seed") && there.dump() != seed) {
    fail_input(
        "{} is the log of another run: seed is {} there, and {} in the checkpoint; name "
        "another log",
        path, there.dump(), seed);
  }
  const std::string digest = manifest.digest.text();
  if (logged.digests.empty() || std::ranges::find(logged.digests, digest) != logged.digests.end()) {
    return;
  }
  fail_input(
      "{} is the log of another run: the checkpoint of step {} has the digest {} there, but {} has "
      "{}; name another log",
      path, resumed.step(), logged.digests.back(), resumed.folder(), digest);
}

}  // namespace

void imply_log(RunOptions& options) {
  const std::string& path = kept_for(options).path;
  if (!options.log.empty() || path.empty()) return;
  options.log = fs::path(path).replace_extension(".jsonl").string();
  options.log_implied = true;
}

void check_log_file(const RunOptions& options, const Resumed& resumed) {
  if (options.log.empty()) return;
  std::error_code error;
  const auto status = fs::status(options.log, error);
  const bool is_file = fs::is_regular_file(status);
  if (!fs::exists(status) || (is_file && fs::file_size(options.log, error) == 0)) return;
  const Json header = is_file ? header_of(options.log) : Json::object();
  if (options.log_implied) check_implied(options, header);
  if (!resumed.found() || !is_file) return;
  check_program(options.log, header, resumed);
  const LoggedRun logged = logged_run(options.log, resumed.step());
  check_model(options, header, logged, resumed);
  check_same_run(options.log, logged, resumed);
}

}  // namespace tessera::apps
