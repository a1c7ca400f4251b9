#include "apps/cli/unwritten_outputs.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include <spdlog/spdlog.h>

#include "apps/cli/changed_settings.h"
#include "apps/console/console.h"
#include "apps/console/shell_word.h"
#include "core/error.h"
#include "models/recommender/recommender_file.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/plan/plan_device.h"
#include "train/report/announce.h"
#include "train/report/log_reader.h"
#include "train/run_files.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

// Returns " (or --epochs)" if the program has this flag, otherwise "". A command that gives
// --epochs must not give --steps, so advice to give --steps must also name --epochs.
std::string or_epochs(const Resumed& resumed) {
  return has_setting(resumed.manifest().run, "epochs") ? " (or --epochs)" : "";
}

// Refuses --save if the run ends before the step of the checkpoint: the weights of the run's last
// step are then not known. A run may end so early if `--resume-changed steps` is given.
void check_save(const RunOptions& options, const Resumed& resumed) {
  if (options.save.empty() || resumed.step() <= options.steps) return;
  // An exported file of a recommender would lack ids and histories, which --save writes.
  const std::string other_way =
      models::describes_recommender(resumed.manifest().weights)
          ? ""
          : fmt::format(", or write the weights of step {}: checkpoint export {} {}",
                        resumed.step(), shell_word(resumed.folder()), shell_word(options.save));
  fail_input(
      "--save {0}: {1} is of step {2}, so the weights of step {3} are not known; give --steps {2} "
      "or more{4}{5}",
      options.save, resumed.folder(), resumed.step(), options.steps, or_epochs(resumed), other_way);
}

// Returns true, with a message to the user, if the checkpoint already has all `steps` steps.
bool finished(const Resumed& resumed, int64_t steps) {
  if (!resumed.found() || resumed.step() < steps) return false;
  const std::string all = steps == 1 ? "the only step is" : fmt::format("all {} steps are", steps);
  if (resumed.step() > steps) {
    spdlog::info("{} done, because {} is of step {}; for more steps give --steps above {}{}", all,
                 resumed.folder(), resumed.step(), resumed.step(), or_epochs(resumed));
    return true;
  }
  // warmup and epochs are named too, because they follow from --steps: the default warm-up is at
  // most a tenth of all steps, and some programs record the number of epochs.
  const std::string epochs = or_epochs(resumed);
  spdlog::info("{} done; for more steps give --steps{} and --resume-changed steps,warmup{}", all,
               epochs, epochs.empty() ? "" : ",epochs");
  return true;
}

// True if the checkpoint that the run resumes from is in the folder of --checkpoint. If --resume
// gives a path, the checkpoint can be in another folder.
bool has_checkpoint(const CheckpointFlags& flags, const Resumed& resumed) {
  if (flags.resume == "latest") return true;
  std::error_code error;
  const fs::path resumed_in = fs::canonical(resumed.folder(), error).parent_path();
  return fs::equivalent(flags.options.folder, resumed_in, error);
}

}  // namespace

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
  const bool offloads = offload(options.memory) == optim::Offload::optimizer;
  if (offloads && train::plan_device(options.devices).device.is_cpu()) {
    train::announce_idle_offload();
  }
  std::vector<std::string> flags = output_flags(options);
  if (options.checkpoints.options.wanted()) flags.emplace_back("--checkpoint");
  if (flags.empty()) return;
  spdlog::warn("--plan takes no step, so nothing is written for {}",
               fmt::format("{}", fmt::join(flags, ", ")));
}

Left left_to_do(const RunOptions& options, const Resumed& resumed,
                const std::vector<std::string>& others) {
  if (options.eval_only) return Left::steps;
  check_save(options, resumed);
  if (!finished(resumed, options.steps)) return Left::steps;
  train::EarlySignals::end();  // no step is left after which a signal could be obeyed
  const std::pair<const char*, const std::string&> unwritten[] = {
      {"--report", options.report},
      {"--csv", options.csv},
      {"--tensorboard", options.tensorboard}};
  const std::string advice =
      train::is_log(options.log)
          ? fmt::format("; the program report makes it from {}", shell_word(options.log))
          : "";
  for (const auto& [flag, path] : unwritten) {
    if (path.empty()) continue;
    spdlog::warn("{} {} is not written, because no step is left{}", flag, path, advice);
  }
  std::error_code error;
  const bool asks_for_log = !options.log.empty() && !options.log_implied;
  if (asks_for_log && !fs::exists(options.log, error)) {
    spdlog::warn("--log {} is not written, because no step is left", options.log);
  }
  if (!options.trace.empty()) {
    spdlog::warn("--trace {} is not written, because no step is left", options.trace);
  }
  std::vector<std::string> flags = given_flags(
      {{"--save-every", options.save_every.has_value()}, {"--save-best", options.save_best}});
  std::ranges::copy(others, std::back_inserter(flags));
  if (!flags.empty()) {
    spdlog::warn("no step is left, so nothing is written for {}",
                 fmt::format("{}", fmt::join(flags, ", ")));
  }
  if (options.checkpoints.options.wanted() && !has_checkpoint(options.checkpoints, resumed)) {
    spdlog::warn(
        "--checkpoint {} is not written, because no step is left; the run's last checkpoint is {}",
        options.checkpoints.options.folder, resumed.folder());
  }
  return options.save.empty() ? Left::nothing : Left::save;
}

void end_save(const std::string& failure, const RunOptions& options, const Resumed& resumed,
              const dist::World& world) {
  train::throw_failure(failure, world);
  spdlog::info("--save {} is written from {}, because no step is left", options.save,
               resumed.folder());
}

}  // namespace tessera::apps
