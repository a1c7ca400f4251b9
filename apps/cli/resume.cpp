#include "apps/cli/resume.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "apps/cli/changed_settings.h"
#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/console/flag_value.h"
#include "core/context.h"
#include "core/convolution_choices.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/product_tuning.h"
#include "core/text/json_read.h"
#include "dist/device_choice.h"
#include "train/agreement.h"
#include "train/report/layout_line.h"
#include "train/tuned_file.h"

namespace tessera::apps {
namespace {

constexpr const char* threads_setting = "threads";

// Members of a log header that do not count as settings of the run: the type of the line, the
// format of the data, and what describes the program, the machine and evaluations. The data are
// compared by a digest instead, and the preset by the sizes of its model. Flags that may always
// change do not count either (may_always_change). With the fast reduction, run_settings adds
// "communicator" all the same.
const std::set<std::string> not_of_the_run = {
    "type",   "program", "version",  "data",       "device_name",  "communicator",
    "preset", "format",  "protocol", "popularity", "tuned_digest", "instructions"};

// True for settings that check() compares even with --eval-only. All other settings are then
// compared only if must_agree() is true: SGD, for instance, must have momentum in both runs or in
// neither, because --eval-only restores the optimizer's state too. For imported checkpoints and for
// recent settings (is_recent) that a checkpoint lacks, check() has other rules.
bool shapes_weights(const std::string& name) {
  if (name == "model.dropout") return false;  // evaluations are without dropout
  return name.starts_with("model.") || name == "ids" || name == "optimizer" ||
         name == "precision";
}

// Returns the name that a flag has in the header: "--global-batch" becomes "global_batch". Blanks
// around the flag are left out.
std::string member_name(std::string name) {
  name.erase(0, name.find_first_not_of("- "));
  name.erase(name.find_last_not_of(' ') + 1);
  std::ranges::replace(name, '-', '_');
  return name;
}

// Refuses flags that say how checkpoints are written, if they would have no effect.
void check_flags_of_checkpoints(const CheckpointFlags& flags) {
  if (flags.staging && !flags.options.staged()) {
    fail_input(
        "--checkpoint-staging limits the copy from which checkpoints are written while steps go "
        "on; give --checkpoint, and --checkpoint-async on");
  }
  if (flags.options.wanted()) return;
  for (const std::string& flag : flags_of_writing(flags)) {
    fail_input("{}: give --checkpoint, the folder to save in", flag);
  }
}

}  // namespace

void add_checkpoint_options(Flags& app, CheckpointFlags& flags) {
  const char* group = "Checkpoints";
  app.add_option("--checkpoint", flags.options.folder,
                 "Save checkpoints, from which the run can resume, in the folder DIR, at the end "
                 "of the run and on SIGUSR1")
      ->compare(Compared::presence)
      ->group(group);
  app.add_option("--checkpoint-every", flags.options.every,
                 "Also save a checkpoint every N steps; 0: no more than --checkpoint alone")
      ->capture_default_str()
      ->group(group);
  app.add_option("--checkpoint-keep", flags.keep,
                 fmt::format("How many of the newest checkpoints to keep (default: {})",
                             flags.options.keep))
      ->group(group);
  app.add_option("--checkpoint-async", flags.async,
                 "Write checkpoints from a copy of the state, while steps go on: on or off "
                 "(default: on)")
      ->one_of({"on", "off"})
      ->group(group);
  app.add_bytes("--checkpoint-staging", flags.staging,
                "Most bytes of state that a rank copies for --checkpoint-async, such as 1GiB or 0; "
                "update counts, the loss scale and running statistics are always copied; the next "
                "update waits until the rest is written (default: all of the state)",
                Zero::allowed)
      ->group(group);
  app.add_option("--resume", flags.resume,
                 "Checkpoint to resume from: latest, the newest in the folder of --checkpoint (the "
                 "default with --checkpoint); never; or the folder of one checkpoint")
      ->compare(Compared::presence)
      ->group(group);
  app.add_option("--resume-changed", flags.changed,
                 "Settings that may differ from those of the saved run, such as lr,steps")
      ->list(',')
      ->group(group);
}

std::vector<std::string> flags_of_writing(const CheckpointFlags& flags) {
  return given_flags({{"--checkpoint-every", flags.options.every > 0},
                      {"--checkpoint-keep", flags.keep.has_value()},
                      {"--checkpoint-async", flags.async.has_value()},
                      {"--checkpoint-staging", flags.staging.has_value()}});
}

void fill_checkpoints(CheckpointFlags& flags) {
  at_least("--checkpoint-every", flags.options.every, 0);
  flags.options.keep = flags.keep.value_or(flags.options.keep);
  at_least("--checkpoint-keep", flags.options.keep, 1);
  flags.options.async = flags.async.value_or("on") == "on";
  flags.options.staging = flags.staging;
  check_flags_of_checkpoints(flags);
  if (!flags.changed.empty() && flags.resume == "never") {
    fail_input("--resume-changed has no effect with --resume never; leave out one of them");
  }
  if (flags.resume.empty()) flags.resume = flags.options.wanted() ? "latest" : "never";
  if (flags.resume == "latest" && !flags.options.wanted()) {
    fail_input("--resume latest: give --checkpoint, the folder to look in");
  }
  if (!flags.changed.empty() && flags.resume == "never") {
    fail_input(
        "--resume-changed: there is no checkpoint to resume from; give --checkpoint or --resume");
  }
  flags.options.resumes_newest = flags.resume == "latest";
  for (std::string& name : flags.changed) name = member_name(name);
}

dist::Settings run_settings(const JsonObject& header) {
  dist::Settings settings;
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    settings.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
  };
  const auto json = nlohmann::ordered_json::parse(header.text());
  // The fast reduction adds in the transport's order, which depends on the transport, on what a
  // call sends, and on how many ranks. Synchronized batch norms see one micro-batch of each rank.
  std::set<std::string> of_the_bits;
  if (json.value("reduction", std::string()) == "fast") {
    of_the_bits = {"ranks", "stage", "bucket_bytes"};
    // A single rank has nothing to add, so the transport does not matter.
    if (json.value("ranks", 1) > 1) of_the_bits.insert("communicator");
  }
  if (json.value("sync_bn", false)) of_the_bits.insert("ranks");
  for (const auto& [name, value] : json.items()) {
    const bool is_left_out = may_always_change(name) || not_of_the_run.contains(name);
    if (is_left_out && !of_the_bits.contains(name)) continue;
    if (!value.is_object()) {
      add(name, value);
      continue;
    }
    for (const auto& [member, text] : value.items()) {
      // The number of parameters follows from the model's sizes, so it is left out.
      if (member != "parameters") add(name + "." + member, text);
    }
  }
  return settings;
}

dist::Settings bits_settings(const std::string& program, const dist::World& world) {
  dist::Settings settings = train::program_settings(program);
  const Device device = world.communicator->device();
  settings.push_back({"device", device.is_cpu() ? dist::device_type_name(device)
                                                : cuda::device_name(device.index)});
  settings.push_back({"tuned", train::tuned_digest()});
  if (!device.is_cpu()) {
    settings.push_back({"cuBLASLt", std::to_string(cuda::product_library_version())});
    // Only train_resnet has convolutions. The other programs do not load cuDNN on a single rank.
    if (program == "train_resnet") {
      settings.push_back({"cuDNN", std::to_string(cuda::convolution_library_version())});
    }
  }
  settings.push_back({threads_setting, std::to_string(thread_count())});
  for (dist::Setting& setting : train::processor_settings(world)) {
    if (!setting.name.starts_with("--threads")) settings.push_back(std::move(setting));
  }
  return settings;
}

Resumed::Resumed(const CheckpointFlags& flags, const dist::World& world) : flags_(flags) {
  // Paths may differ between hosts, so the checkpoints at the paths are compared instead (below).
  const bool is_path = flags.resume != "latest" && flags.resume != "never";
  dist::check_agreement(world, {{"--resume", is_path ? "a folder" : flags.resume}});
  open(world);
  // Only rank 0 has a claim. An error here ends the job on all ranks.
  if (claimed_) train::check_names_are_free(flags.options.folder, step());
  const std::string opened =
      found() ? fmt::format("step {}, digest {}", step(), manifest().digest.text()) : "none";
  dist::check_agreement(world, {{"the checkpoint to resume from", opened}});
}

void Resumed::open(const dist::World& world) {
  const std::string& folder = flags_.options.folder;
  const bool writes = flags_.options.wanted() && !flags_.only_weights;
  if (writes) claimed_ = train::claim_folder(folder, world);
  if (flags_.resume == "latest") {
    checkpoint_ = train::find_checkpoint(folder, world);
    if (flags_.only_weights && !found()) {
      fail_input("--eval-only: {} has no checkpoint", folder);
    }
    return;
  }
  // All ranks wait until rank 0 has claimed the folder, because the claim may rename the checkpoint
  // that is opened below. If a run was killed while it replaced a checkpoint, that checkpoint has a
  // temporary name until the next claim (remove_partial_checkpoints).
  world.communicator->barrier();
  if (flags_.resume != "never") checkpoint_ = train::open_checkpoint(flags_.resume, world);
  if (writes) check_no_later_steps();
}

// Throws InputError if the folder has a checkpoint of a later step than the step this run starts
// from. The next start would resume from that checkpoint, not from this run's newest checkpoint.
void Resumed::check_no_later_steps() const {
  const std::vector<int64_t> steps = train::checkpoint_steps(flags_.options.folder);
  if (steps.empty() || steps.front() <= step()) return;
  fail_input(
      "--resume {}: {} has a checkpoint of step {}, from which a later start would go on; remove "
      "the checkpoints after step {}, or give --checkpoint another folder",
      flags_.resume, flags_.options.folder, steps.front(), step());
}

std::optional<double> Resumed::epochs(int64_t done, int64_t steps_per_epoch) const {
  if (found() && flags_.only_weights) {
    const char* name = "steps_per_epoch";
    if (!has_setting(manifest().run, name)) return std::nullopt;
    steps_per_epoch = parse_integer(fmt::format("{}: {}", folder(), name),
                                    setting_value(manifest().run, name), 1);
  }
  return static_cast<double>(done) / static_cast<double>(steps_per_epoch);
}

int Resumed::threads(int given, const dist::World& world) const {
  if (given == 0 && found() && has_setting(manifest().bits, threads_setting)) {
    constexpr int64_t most = 4096;
    return static_cast<int>(parse_integer(fmt::format("{}: {}", folder(), threads_setting),
                                          setting_value(manifest().bits, threads_setting), 1,
                                          most));
  }
  return dist::threads_per_rank(given, world.local_size);
}

// Refuses names in --resume-changed that no setting has. A run without a checkpoint is checked too,
// so that a command is refused at its first start, not only when it restarts a killed run. And a
// command that was accepted must be accepted when it restarts a killed run (may_be_unrecorded).
void Resumed::check_names(const std::string& program, const dist::Settings& run) const {
  const std::vector<std::string> known =
      setting_names(run, found() ? checkpoint_->manifest().run : dist::Settings());
  for (const std::string& name : flags_.changed) {
    if (std::ranges::find(known, name) != known.end()) continue;
    if (may_be_unrecorded(name, flags_.changed, program, run, found())) continue;
    fail_input("{}", unknown_setting(name, known, run));
  }
}

std::optional<std::string> Resumed::program() const {
  const dist::Settings& bits = checkpoint_->manifest().bits;
  if (!has_setting(bits, "program")) return std::nullopt;
  const std::string saved = setting_value(bits, "program");  // such as "train_gpt 0.1.0"
  return saved.substr(0, saved.find(' '));
}

// Refuses the checkpoint of another program. Almost all settings differ then, and a list of them
// would hide the reason.
void Resumed::check_program(const std::string& program) const {
  const std::string writer = this->program().value_or(program);
  if (writer == program) return;
  fail_input("{} was written by {}, expected a checkpoint of {}", checkpoint_->folder(), writer,
             program);
}

void Resumed::check(const std::string& program, const dist::Settings& run) const {
  if (found()) check_program(program);
  check_names(program, run);
  if (!found()) return;
  const train::Manifest& manifest = checkpoint_->manifest();
  const bool imported = !manifest.imported.empty();
  const auto is_compared = [&](const ChangedSetting& changed) {
    const std::string& name = changed.name;
    // Compares the settings that the import recorded. Also compares the epsilon if it was not
    // recorded: the checkpoint then has the default epsilon.
    if (imported) return has_setting(manifest.run, name) || is_epsilon(name);
    if (is_recent(name) && !has_setting(manifest.run, name)) return false;
    // A single rank records no transport, and may take any. If the number of ranks differs, that is
    // refused or accepted, and so is the other order of the sums.
    if (name == "communicator" &&
        setting_value(run, "ranks") != setting_value(manifest.run, "ranks")) {
      return false;
    }
    return !flags_.only_weights || shapes_weights(name) || must_agree(changed, run);
  };
  std::vector<ChangedSetting> refused;
  for (const ChangedSetting& changed : changed_settings(run, manifest.run)) {
    const bool named = std::ranges::find(flags_.changed, changed.name) != flags_.changed.end();
    if (!is_compared(changed) || (named && !must_agree(changed, run))) continue;
    refused.push_back(changed);
  }
  if (!refused.empty()) {
    fail_input("settings differ from those of {} {}: {}",
               imported ? manifest.imported + ", the origin of" : "the run that wrote",
               checkpoint_->folder(), refusal_of(refused, flags_.changed, run));
  }
}

// For an imported checkpoint, prints the names of the settings that the import recorded. For any
// other checkpoint, except with --eval-only, warns of each setting in `bits` (bits_settings) that
// differs from the checkpoint's. Does not warn of settings that an earlier version did not record.
void Resumed::announce_differences(const dist::Settings& bits) const {
  if (!found()) return;
  const train::Manifest& manifest = checkpoint_->manifest();
  if (!manifest.imported.empty()) {
    std::vector<std::string> names;
    for (const dist::Setting& setting : manifest.run) names.push_back(setting.name);
    spdlog::info("{} was imported from {}, which fixes {}; the rest of the run is this command's",
                 checkpoint_->folder(), manifest.imported,
                 names.empty() ? "the tensors alone" : fmt::format("{}", fmt::join(names, ", ")));
    return;
  }
  if (flags_.only_weights) return;
  for (const auto& [name, now, before] : changed_settings(bits, manifest.bits)) {
    if (is_recent(name) && !has_setting(manifest.bits, name)) continue;
    spdlog::warn(
        "{} is {}, but was {} when the checkpoint was saved: from here on, results may differ in "
        "their bits from those of a run that was not interrupted",
        name, now, before);
  }
}

void Resumed::place(train::LoopOptions& loop, const dist::Settings& run,
                    const dist::Settings& bits) const {
  announce_differences(bits);
  loop.checkpoints = flags_.options;
  loop.first_step = step();
  loop.skipped = skipped();
  if (found()) loop.best = checkpoint_->manifest().best;
  drop_other_best(loop, run);
  loop.checkpoints.saved_step = found() && flags_.resume == "latest" ? step() : -1;
  if (!found()) return;
  spdlog::info("{} {}, after step {}, digest {}",
               flags_.only_weights ? "evaluating" : "going on from", checkpoint_->folder(), step(),
               checkpoint_->manifest().digest.text());
}

// Drops the best evaluation so far if a changed setting affects evaluations. Evaluations of this
// run cannot be compared with it then. WeightSaves compares WeightSaveOptions::evaluated.
void Resumed::drop_other_best(train::LoopOptions& loop, const dist::Settings& run) const {
  if (!loop.best) return;
  for (const ChangedSetting& changed : changed_settings(run, manifest().run)) {
    // Ignores changes that --resume-changed does not name. check() has let them pass, because it
    // does not compare these settings, such as lr with --eval-only.
    const bool named = std::ranges::find(flags_.changed, changed.name) != flags_.changed.end();
    if (!named || !affects_evaluation(changed.name, run)) continue;
    spdlog::info("{}, so earlier evaluations no longer count as the best", difference(changed));
    return loop.best.reset();
  }
}

void Resumed::restore(optim::ZeroOptimizer& optimizer) const {
  if (found()) train::restore_checkpoint(*checkpoint_, optimizer);
}

JsonObject Resumed::first_line(const train::RunLog& log, JsonObject header,
                               const optim::ZeroOptimizer& optimizer) const {
  header.add("layout", train::layout_json(optimizer.ownership()));
  if (log.empty() || !found()) return header;
  // Does not call parse_json, which may refuse the long header of a run with many buckets.
  const auto json = nlohmann::ordered_json::parse(header.text());
  JsonObject line;
  line.add("type", "resume")
      .add("step", step())
      .add("checkpoint", checkpoint_->folder())
      .add("digest", checkpoint_->manifest().digest.text());
  for (const auto& [name, value] : json.items()) {
    if (name != "type") line.raw(name, value.dump());
  }
  return line;
}

}  // namespace tessera::apps
