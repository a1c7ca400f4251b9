// Compares the settings of a run with those in the checkpoint from which the run resumes.
#pragma once

#include <string>
#include <vector>

#include "dist/agreement.h"

namespace tessera::apps {

/// Returns true if `settings` has the setting.
bool has_setting(const dist::Settings& settings, const std::string& name);
/// Returns the setting's value, or "not set" if `settings` does not have the setting.
std::string setting_value(const dist::Settings& settings, const std::string& name);
/// Returns the names in `a`, and then the names that only `b` has.
std::vector<std::string> setting_names(const dist::Settings& a, const dist::Settings& b);

/// A setting whose value in a run differs from its value in the checkpoint. If the run or the
/// checkpoint lacks the setting, its value is "not set".
struct ChangedSetting {
  std::string name;
  std::string now;     // in the run
  std::string before;  // in the checkpoint
};

/// Returns the settings that differ, in the order of setting_names(run, saved).
std::vector<ChangedSetting> changed_settings(const dist::Settings& run,
                                             const dist::Settings& saved);

/// Says how the setting differs: "lr is 0.5 instead of 1", or, if the checkpoint lacks it, "lr is
/// 0.5 but not set in the checkpoint".
std::string difference(const ChangedSetting& changed);

/// True for the epsilon of a GPT's norms. Runs and imports record it only if it is not the default,
/// so a checkpoint without this setting has the default epsilon.
bool is_epsilon(const std::string& name);

/// True for settings that checkpoints and logs of earlier versions may lack.
bool is_recent(const std::string& name);

/// True for flags that a resume does not compare, such as "stage". They say where and how the run
/// is computed, how it is evaluated, and what it prints and writes. True for "ranks", "stage" and
/// "bucket_bytes" too, although a resume compares them if the run's bits depend on them
/// (run_settings).
bool may_always_change(const std::string& name);

/// Returns true if --resume-changed may name the setting although neither this run nor its
/// checkpoint records the setting. Some settings are recorded only under a condition, such as
/// "stage" only with the fast reduction. A command may drop such a setting, and is then started
/// again after the run has saved a checkpoint without this setting.
///
/// `changed` has all names in --resume-changed, and `run` all settings of the run of `program`.
/// `found` is true if the run resumes from a checkpoint.
bool may_be_unrecorded(const std::string& name, const std::vector<std::string>& changed,
                       const std::string& program, const dist::Settings& run, bool found);

/// Returns true if --resume-changed cannot accept the change: the tensors of a checkpoint do not
/// fit a run with the changed setting, or the setting is the epsilon of a GPT's norms, which no
/// flag sets. `run` has all settings of the run.
bool must_agree(const ChangedSetting& changed, const dist::Settings& run);

/// Returns false if only training depends on the setting, else true. Evaluations of two runs can be
/// compared if all settings that affect evaluations are equal. `run` has all settings of the run.
bool affects_evaluation(const std::string& name, const dist::Settings& run);

/// Returns the second part of an error message about the settings in `refused`: each setting with
/// both values, and what the user can do. --resume-changed is proposed only if it can accept all
/// changes in `refused`. The proposal then also has the names in `accepted`, which the user has
/// given to --resume-changed.
std::string refusal_of(const std::vector<ChangedSetting>& refused,
                       const std::vector<std::string>& accepted, const dist::Settings& run);

/// Returns the error message for a name in --resume-changed that is not in `known`. If
/// may_always_change(name), the message says that the name must be left out. Else, if "model." +
/// name is in `known`, the message proposes this setting, such as "model.layers" for "layers". Else
/// the message lists the settings in `known` that --resume-changed can accept.
std::string unknown_setting(const std::string& name, const std::vector<std::string>& known,
                            const dist::Settings& run);

}  // namespace tessera::apps
