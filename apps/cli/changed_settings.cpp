#include "apps/cli/changed_settings.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "core/error.h"
#include "models/image/resnet.h"
#include "models/image/vgg.h"

namespace tessera::apps {
namespace {

constexpr const char* absent = "not set";
constexpr const char* epsilon = "model.epsilon";

// Settings that only training depends on. They do not change how given weights are evaluated.
const std::set<std::string> only_of_training = {
    "steps",     "epochs",          "steps_per_epoch", "global_batch", "optimizer",
    "lr",        "min_lr",          "warmup",          "schedule",     "weight_decay",
    "beta1",     "beta2",           "nesterov",        "clip",         "grad_shard",
    "reduction", "ranks",           "augment",         "sync_bn",      "label_smoothing",
    "tables",    "table_optimizer", "negatives",       "l2",           "model.dropout",
    "stage",     "bucket_bytes",    "communicator"};

// Flags that a resume does not compare, with one exception: if the bits of a run depend on "ranks",
// "stage" or "bucket_bytes", run_settings records it nevertheless, and a resume compares it.
const std::set<std::string> always_free = {
    "ranks",      "stage",  "bucket_bytes",  "overlap",      "graph",      "threads",
    "workers",    "device", "comm",          "comm_timeout", "offload",    "recompute",
    "tune",       "tuned",  "init",          "verify_data",  "eval_every", "eval_batches",
    "val_data",   "top",    "sampled_items", "sample",       "save",       "save_every",
    "save_best",  "log",    "trace",         "report",       "csv",        "tensorboard",
    "norms_every"};

// See is_recent.
const std::set<std::string> recent = {"ids",          "model.hidden", "training_part", "stage",
                                      "bucket_bytes", "communicator", "cuBLASLt",      "cuDNN"};

// Settings that run_settings records only with the fast reduction. With synchronized batch norms,
// it records "ranks", too.
const std::set<std::string> of_fast_reduction = {"ranks", "stage", "bucket_bytes", "communicator"};

bool is_zero(const std::string& value) { return std::strtod(value.c_str(), nullptr) == 0; }

// Returns true if an image model has tensors of other shapes for images of side `now` than for
// images of side `before`. In a VGG, each pool halves the side, and the first linear layer has
// weights for each remaining pixel. The hidden layers of a VGG are also narrower for small images.
// In a ResNet, the only tensor whose shape depends on the side is the first convolution's kernel,
// which is smaller for small images.
bool depends_on_size(const std::string& model, const std::string& now, const std::string& before) {
  if (model.starts_with("vgg")) {
    const auto shape = [&](const std::string& text) {
      const int64_t side = std::atoll(text.c_str());
      const auto config = models::VggConfig::preset(model, {.side = side});
      return std::pair(side >> config.stages.size(), config.hidden);
    };
    return shape(now) != shape(before);
  }
  const auto small_images = [&](const std::string& side) {
    return models::ResNetConfig::preset(model, {.side = std::atoll(side.c_str())}).small_images;
  };
  return small_images(now) != small_images(before);
}

}  // namespace

bool has_setting(const dist::Settings& settings, const std::string& name) {
  return std::ranges::find(settings, name, &dist::Setting::name) != settings.end();
}

std::string setting_value(const dist::Settings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings, name, &dist::Setting::name);
  return found == settings.end() ? absent : found->value;
}

std::vector<std::string> setting_names(const dist::Settings& a, const dist::Settings& b) {
  std::vector<std::string> names;
  for (const dist::Setting& setting : a) names.push_back(setting.name);
  for (const dist::Setting& setting : b) {
    if (!has_setting(a, setting.name)) names.push_back(setting.name);
  }
  return names;
}

std::vector<ChangedSetting> changed_settings(const dist::Settings& run,
                                             const dist::Settings& saved) {
  std::vector<ChangedSetting> changed;
  for (const std::string& name : setting_names(run, saved)) {
    const std::string now = setting_value(run, name);
    const std::string before = setting_value(saved, name);
    if (now != before) changed.push_back({name, now, before});
  }
  return changed;
}

std::string difference(const ChangedSetting& changed) {
  const auto& [name, now, before] = changed;
  if (before == absent) return fmt::format("{} is {} but not set in the checkpoint", name, now);
  if (now == absent) return fmt::format("{} is not set but {} in the checkpoint", name, before);
  return fmt::format("{} is {} instead of {}", name, now, before);
}

bool is_epsilon(const std::string& name) { return name == epsilon; }

bool is_recent(const std::string& name) { return recent.contains(name); }

bool may_always_change(const std::string& name) {
  return always_free.contains(name) || name.starts_with("checkpoint");
}

bool may_be_unrecorded(const std::string& name, const std::vector<std::string>& changed,
                       const std::string& program, const dist::Settings& run, bool found) {
  const auto is_changed = [&](const char* other) {
    return std::ranges::find(changed, other) != changed.end();
  };
  // A single rank records no transport. The command may have begun on more ranks, and if some of
  // them were lost before the first checkpoint, there is none yet.
  if (name == "communicator" && setting_value(run, "reduction") == "fast") return true;
  // Only a run that resumes can drop a setting. Without a checkpoint, the command is refused at its
  // first start already.
  if (!found) return false;
  // A run without --loss-rows records no such setting.
  if (name == "loss_rows") return program == "train_gpt";
  // A command that drops one of the other settings has to name the setting on which the record
  // depends, too, because this setting also changes.
  if (name == "ranks" && is_changed("sync_bn")) return true;
  return of_fast_reduction.contains(name) && is_changed("reduction");
}

bool must_agree(const ChangedSetting& changed, const dist::Settings& run) {
  const auto& [name, now, before] = changed;
  // A checkpoint's tensors fit a model with any epsilon. But the epsilon comes from --init alone.
  // So a changed epsilon is a mistake: --init is missing, or names the wrong weights.
  if (is_epsilon(name)) return true;
  // If the run or the checkpoint lacks the setting, the tensors may fit nevertheless: older
  // checkpoints lack settings that were added later.
  if (now == absent || before == absent) return false;
  if (name == "model.dropout") return false;
  if (name == "model.image_size") {
    return depends_on_size(setting_value(run, "model.name"), now, before);
  }
  // "ids" is a digest of the ids of a recommender's users and items. With other ids, rows of the
  // recommender's embedding tables would belong to the wrong users or items.
  if (name.starts_with("model.") || name == "ids") return true;
  // Adam and AdamW keep the same optimizer state.
  if (name == "optimizer") return !(now.starts_with("adam") && before.starts_with("adam"));
  if (name == "table_optimizer") return true;
  // Only with fp16 does a checkpoint have the state of a loss scaler.
  if (name == "precision") return now == "fp16" || before == "fp16";
  // SGD keeps optimizer state only with momentum, and the setting beta1 is the momentum.
  const bool sgd = setting_value(run, "optimizer") == "sgd";
  return name == "beta1" && sgd && is_zero(now) != is_zero(before);
}

bool affects_evaluation(const std::string& name, const dist::Settings& run) {
  // Only train_recommender, which records its objective, evaluates with random numbers: --split and
  // --sampled-items draw from the seed.
  if (name == "seed") return has_setting(run, "objective");
  return !only_of_training.contains(name);
}

std::string refusal_of(const std::vector<ChangedSetting>& refused,
                       const std::vector<std::string>& accepted, const dist::Settings& run) {
  std::vector<std::string> differences;
  std::vector<std::string> fixed;
  std::vector<std::string> proposed = accepted;
  bool other_epsilon = false;
  // True if the checkpoint was trained with the default epsilon, which checkpoints do not record.
  bool epsilon_is_default = false;
  for (const ChangedSetting& changed : refused) {
    const std::string& name = changed.name;
    differences.push_back(difference(changed));
    if (is_epsilon(name)) {
      other_epsilon = true;
      epsilon_is_default = changed.before == absent;
    } else if (must_agree(changed, run)) {
      fixed.push_back(name);
    }
    proposed.push_back(name);
  }
  const std::string all = fmt::format("{}", fmt::join(differences, ", "));
  if (fixed.empty() && !other_epsilon) {
    return fmt::format("{}; give the same values, another folder, or --resume-changed {}", all,
                       fmt::join(proposed, ","));
  }
  std::vector<std::string> reasons;
  if (!fixed.empty()) {
    reasons.push_back(
        fmt::format("{} must be as in the checkpoint, because its tensors fit no other {}",
                    fmt::join(fixed, ", "), fixed.size() == 1 ? "value" : "values"));
  }
  if (other_epsilon) {
    reasons.push_back(
        fmt::format("{} comes from the config.json of --init; give --init weights with the "
                    "checkpoint's epsilon{}",
                    epsilon, epsilon_is_default ? ", the default, or leave --init out" : ""));
  }
  return fmt::format("{}; give another folder, or the same values: {}", all,
                     fmt::join(reasons, "; "));
}

std::string unknown_setting(const std::string& name, const std::vector<std::string>& known,
                            const dist::Settings& run) {
  if (may_always_change(name)) {
    return fmt::format("--resume-changed {}: leave it out, because {} may always change", name,
                       name);
  }
  const std::string begin = fmt::format("--resume-changed {}: there is no such setting", name);
  const std::string of_model = "model." + name;
  if (std::ranges::find(known, of_model) != known.end()) {
    return fmt::format("{}, expected {}", begin, of_model);
  }
  std::vector<std::string> free;
  for (const std::string& other : known) {
    const std::string value = setting_value(run, other);
    if (!must_agree({other, value, value}, run)) free.push_back(other);
  }
  return fmt::format("{}, expected one of {}", begin, fmt::join(free, ", "));
}

}  // namespace tessera::apps
