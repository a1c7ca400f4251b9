#include "apps/cli/unwritten_outputs.h"

#include <filesystem>
#include <utility>

#include <spdlog/spdlog.h>

#include "apps/console/console.h"
#include "core/error.h"

namespace tessera::apps {

std::vector<std::string> output_flags(const RunOptions& options) {
  return given_flags({{"--log", !options.log.empty() && !options.log_implied},
                      {"--trace", !options.trace.empty()},
                      {"--report", !options.report.empty()},
                      {"--csv", !options.csv.empty()},
                      {"--save", !options.save.empty()},
                      {"--tensorboard", !options.tensorboard.empty()},
                      {"--save-every", options.save_every.has_value()},
                      {"--save-best", options.save_best}});
}

void warn_of_plan(const RunOptions& options) {
  std::vector<std::string> flags = output_flags(options);
  if (options.checkpoints.options.wanted()) flags.emplace_back("--checkpoint");
  if (flags.empty()) return;
  spdlog::warn("--plan takes no step, so nothing is written for {}",
               fmt::format("{}", fmt::join(flags, ", ")));
}

bool nothing_left(const RunOptions& options, const Resumed& resumed) {
  if (options.eval_only || !resumed.finished(options.steps)) return false;
  const std::pair<const char*, const std::string&> unwritten[] = {
      {"--report", options.report},
      {"--csv", options.csv},
      {"--tensorboard", options.tensorboard}};
  for (const auto& [flag, path] : unwritten) {
    if (path.empty()) continue;
    spdlog::warn(
        "{} {} is not written, because no step is left; the program report makes it from the log",
        flag, path);
  }
  std::error_code error;
  const bool asks_for_log = !options.log.empty() && !options.log_implied;
  if (asks_for_log && !std::filesystem::exists(options.log, error)) {
    spdlog::warn("--log {} is not written, because no step is left", options.log);
  }
  if (!options.trace.empty()) {
    spdlog::warn("--trace {} is not written, because no step is left", options.trace);
  }
  if (!options.save.empty()) {
    spdlog::warn(
        "--save {0} is not written, because no step is left; `checkpoint export {1} {0}` writes it",
        options.save, resumed.folder());
  }
  return true;
}

}  // namespace tessera::apps
