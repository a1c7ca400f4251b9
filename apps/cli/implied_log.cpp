#include "apps/cli/implied_log.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

// The flag whose file the log is kept for, and its path.
struct KeptFor {
  const char* flag;
  const std::string& path;
};
KeptFor kept_for(const RunOptions& options) {
  if (options.report.empty()) return {"csv", options.csv};
  return {"report", options.report};
}

}  // namespace

void imply_log(RunOptions& options) {
  const std::string& path = kept_for(options).path;
  if (!options.log.empty() || path.empty()) return;
  options.log = fs::path(path).replace_extension(".jsonl").string();
  options.log_implied = true;
}

void check_implied_log(const RunOptions& options) {
  if (!options.log_implied) return;
  std::error_code error;
  const auto status = fs::status(options.log, error);
  if (!fs::exists(status)) return;
  const auto [flag, path] = kept_for(options);
  std::string first;
  if (fs::is_regular_file(status)) {
    if (fs::file_size(options.log, error) == 0) return;
    std::ifstream file(options.log, std::ios::binary);
    std::getline(file, first);
  }
  const nlohmann::json header = nlohmann::json::parse(first, nullptr, false);
  const auto member = header.is_object() ? header.find(flag) : header.end();
  const bool is_ours = header.is_object() && member != header.end() && member->is_string() &&
                       fs::path(member->get<std::string>()).filename() == fs::path(path).filename();
  if (is_ours) return;
  fail_input(
      "--{} {} keeps its log in {}, which is there already and was not written for it; name a log "
      "with --log",
      flag, path, options.log);
}

}  // namespace tessera::apps
