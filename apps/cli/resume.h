// The flags of the training applications that save a run in checkpoints and resume it
// (--checkpoint, --resume and the others of the group "Checkpoints" in --help), and the checkpoint
// that a run resumes from.
//
//   const Resumed resumed(options.checkpoints, world);  // claims the folder
//   set_thread_count(resumed.threads(options.threads, world));
//   resumed.check(run, bits);                           // throws if its settings differ
//   ... optimizer ...
//   resumed.restore(optimizer);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/console/flags.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/training_run.h"

namespace tessera::apps {

struct CheckpointFlags {
  train::CheckpointOptions options;
  std::string resume;                // "latest", "never" or a checkpoint's folder
  std::vector<std::string> changed;  // settings that may differ from the checkpoint's
  std::string async = "on";
  std::optional<int64_t> staging;  // most bytes of a rank's copy of its state; nullopt: no limit
};
void add_checkpoint_options(Flags& app, CheckpointFlags& flags);
/// Fills in the defaults and checks the flags. Throws InputError.
void fill_checkpoints(CheckpointFlags& flags);

/// Returns the settings in a log header that define the run: the model and how it is trained.
/// Leaves out the data, whose digest the caller adds, and settings that say where the run is
/// computed, what it prints and what it writes. The member "layers" of the object "model" becomes
/// "model.layers". With `ranks_matter` the number of ranks is included.
dist::Settings run_settings(const JsonObject& header, bool ranks_matter);

/// Returns the settings that do not define the run, but change the bits of its results: the
/// program, the device, the tuned algorithms, the threads and the CPU's instructions.
dist::Settings bits_settings(const std::string& program, const std::string& tuned,
                             const dist::World& world);

/// The checkpoint that a run resumes from, if there is one.
class Resumed {
 public:
  /// Finds the checkpoint to resume from. If --checkpoint names a folder, rank 0 claims it. Unless
  /// --resume is latest, throws InputError if that folder has a checkpoint of a later step than the
  /// step the run starts from (0 for --resume never), because a later start would resume from it.
  /// Collective.
  Resumed(const CheckpointFlags& flags, const dist::World& world);

  bool found() const { return checkpoint_ != nullptr; }
  /// Returns true, and tells the user, if the checkpoint already has all `steps` steps.
  bool finished(int64_t steps) const;
  int64_t step() const { return found() ? checkpoint_->manifest().step : 0; }
  int64_t skipped() const { return found() ? checkpoint_->manifest().skipped : 0; }
  /// The number of threads per rank: `given` if it is not 0. Otherwise the number that the
  /// checkpoint's run had, because the bits of the results depend on the number of threads. Without
  /// a usable number in a checkpoint, dist::threads_per_rank decides.
  int threads(int given, const dist::World& world) const;

  /// Throws InputError, with both values, if a setting differs from the checkpoint's run and
  /// --resume-changed does not name it, or if --resume-changed names an unknown setting. Warns if
  /// only the bits of the results will differ. For an imported checkpoint only the settings that
  /// the import recorded are compared, and a message lists them.
  void check(const dist::Settings& run, const dist::Settings& bits) const;
  /// Sets the loop's checkpoint options, first step, number of skipped steps and best evaluation so
  /// far. The best evaluation is dropped if --resume-changed names any setting other than "steps"
  /// and "epochs".
  void place(train::LoopOptions& loop) const;
  /// The checkpoint's step, or nullopt if the run starts from the beginning. It is passed on to
  /// RunLog, which removes the lines of later steps, since those steps run again.
  std::optional<int64_t> log_step() const { return found() ? std::optional(step()) : std::nullopt; }
  /// Restores the optimizer's state from the checkpoint, if there is one. Every rank calls it.
  void restore(optim::ZeroOptimizer& optimizer) const;
  /// The log line that begins this part of the run: the header, or, if the run was resumed, a line
  /// of type "resume" with the step, the checkpoint and the members of the header.
  JsonObject log_line(const JsonObject& header) const;

 private:
  void check_no_later_steps() const;
  void check_imported(const dist::Settings& run) const;

  const CheckpointFlags& flags_;
  std::unique_ptr<train::CheckpointFolder> claimed_;  // set on rank 0 only
  std::unique_ptr<train::CheckpointReader> checkpoint_;
};

}  // namespace tessera::apps
