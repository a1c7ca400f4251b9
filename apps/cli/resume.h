// How the applications that train save their runs, and go on with them: --checkpoint and the flags
// beside it.
//
//   const Resumed resumed(options.checkpoints, world);          // claims the folder, finds the
//   newest set_thread_count(resumed.threads(options.threads, world)); resumed.check(run, bits); //
//   is it this run?
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
  std::vector<std::string> changed;  // what may differ from the checkpoint's run
  std::string async = "on";
  std::optional<int64_t> staging;  // bytes
};
void add_checkpoint_options(Flags& app, CheckpointFlags& flags);
/// Completes and checks. Throws InputError.
void fill_checkpoints(CheckpointFlags& flags);

/// Settings of what a header of the log says of the run itself: what is learned, from what and how.
/// Where it runs, what is printed and what is written beside do not belong to it. "model.layers" is
/// in the object "model". `ranks_matter`: another number of ranks is another run.
dist::Settings run_settings(const JsonObject& header, bool ranks_matter);

/// What a run's bits depend on besides: the program, the device, and what computes there.
dist::Settings bits_settings(const std::string& program, const std::string& tuned,
                             const dist::World& world);

/// The checkpoint that a run goes on from, if there is one.
class Resumed {
 public:
  /// Claims the folder on rank 0, and finds the checkpoint that --resume means. Collective.
  Resumed(const CheckpointFlags& flags, const dist::World& world);

  bool found() const { return checkpoint_ != nullptr; }
  /// Whether nothing is left to do of so many steps; then it says so.
  bool finished(int64_t steps) const;
  int64_t step() const { return found() ? checkpoint_->manifest().step : 0; }
  int64_t skipped() const { return found() ? checkpoint_->manifest().skipped : 0; }
  /// Threads of a rank: those of the checkpoint where none are `given`, since bits depend on them.
  int threads(int given, const dist::World& world) const;

  /// Throws InputError, with both values, where the checkpoint is of another run and
  /// --resume-changed does not say so; warns where only its bits will be others. Of a checkpoint
  /// that was imported only what its file fixes is compared, and the user is told.
  void check(const dist::Settings& run, const dist::Settings& bits) const;
  /// Gives the loop its place.
  void place(train::LoopOptions& loop) const;
  /// For the log, which goes on too.
  std::optional<int64_t> log_step() const { return found() ? std::optional(step()) : std::nullopt; }
  /// Gives the optimizer its state, and lets go of the checkpoint's files. Every rank calls it.
  void restore(optim::ZeroOptimizer& optimizer) const;
  /// The line of the log that begins what follows: a header, or, in the log of the run so far, what
  /// this part of it has of its own.
  JsonObject log_line(const JsonObject& header) const;

 private:
  void check_no_later_steps() const;
  void check_imported(const dist::Settings& run) const;

  const CheckpointFlags& flags_;
  std::unique_ptr<train::CheckpointFolder> claimed_;  // on rank 0
  std::unique_ptr<train::CheckpointReader> checkpoint_;
};

}  // namespace tessera::apps
