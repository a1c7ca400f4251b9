#include "apps/cli/log_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

// The flag that needs the log, --report or --csv, and the path that was given with this flag.
struct KeptFor {
  const char* flag;
  const std::string& path;
};
KeptFor kept_for(const RunOptions& options) {
  if (options.report.empty()) return {"csv", options.csv};
  return {"report", options.report};
}

// Returns the header, which is the first line of a log, or an empty object if there is no header.
nlohmann::json header_of(const std::string& path) {
  std::string line;
  std::ifstream file(path, std::ios::binary);
  std::getline(file, line);
  nlohmann::json header = nlohmann::json::parse(line, nullptr, false);
  if (header.is_object() && header.value("type", nlohmann::json()) == "header") return header;
  return nlohmann::json::object();
}

void check_implied(const RunOptions& options, const nlohmann::json& header) {
  const auto [flag, path] = kept_for(options);
  const auto member = header.find(flag);
  const bool is_ours = member != header.end() && member->is_string() &&
                       fs::path(member->get<std::string>()).filename() == fs::path(path).filename();
  if (is_ours) return;
  fail_input(
      "--{} {} keeps its log in {}, which already exists and was not written for {}; name "
      "another log with --log",
      flag, path, options.log, path);
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
  const nlohmann::json header = is_file ? header_of(options.log) : nlohmann::json::object();
  if (options.log_implied) check_implied(options, header);
  if (resumed.found() && is_file) resumed.check_log(options.log, header);
}

}  // namespace tessera::apps
