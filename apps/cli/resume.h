// Saves and resumes the runs of the training applications: the flags of the group "Checkpoints",
// such as --checkpoint and --resume, and the checkpoint that a run resumes from.
//
//   const Resumed resumed(options.checkpoints, world);  // claims the folder
//   set_thread_count(resumed.threads(options.threads, world));
//   resumed.check("train_gpt", run);                    // throws if `run` differs
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
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/report/run_log.h"
#include "train/training_run.h"

namespace tessera::apps {

struct CheckpointFlags {
  train::CheckpointOptions options;
  std::string resume;                // "latest", "never" or a checkpoint's folder
  std::vector<std::string> changed;  // settings that may differ from the checkpoint's
  std::optional<int64_t> keep;
  std::optional<std::string> async;
  std::optional<int64_t> staging;  // CheckpointOptions::staging
  bool only_weights = false;       // --eval-only: evaluate the checkpoint, do not train
};
void add_checkpoint_options(Flags& app, CheckpointFlags& flags);
/// Returns the given flags that say how checkpoints are written: "--checkpoint-every", ...
std::vector<std::string> flags_of_writing(const CheckpointFlags& flags);
/// Fills in the defaults and checks the flags. Throws InputError.
void fill_checkpoints(CheckpointFlags& flags);

/// Returns the settings in a log header that define the run: those of the model and the training.
/// The data is left out, because the caller adds the data's digest. Settings that say where and how
/// the run is computed, or what else the run reads, prints and writes, are left out too. But the
/// number of ranks is included if the bits of the run depend on it, as with the fast reduction or
/// synchronized batch norms, and with the fast reduction also the stage, the size of buckets and
/// the transport ("communicator").
/// The member "layers" of the object "model" becomes "model.layers".
dist::Settings run_settings(const JsonObject& header);

/// Returns the settings that do not define the run, but change the bits of its results: the
/// program, the device, the tuned algorithms, the threads and, if the run computes on CPUs,
/// oneDNN's version, instruction set and math mode. On GPUs they include the version of cuBLASLt
/// and, for train_resnet, that of cuDNN.
dist::Settings bits_settings(const std::string& program, const dist::World& world);

/// The checkpoint that a run resumes from, if there is one.
class Resumed {
 public:
  /// Finds the checkpoint to resume from. Collective.
  ///
  ///   --resume latest   the newest checkpoint in the folder of --checkpoint, if there is one
  ///   --resume never    no checkpoint
  ///   --resume DIR      the checkpoint DIR
  ///
  /// Without a checkpoint, the run starts from step 0. Except with --eval-only, rank 0 claims the
  /// folder of --checkpoint (train::claim_folder). An evaluation does not claim the folder, because
  /// another run may be training in it.
  ///
  /// Throws InputError in these cases, and as find_checkpoint and open_checkpoint do:
  ///
  ///   - The folder to claim is not the same for all ranks, or cannot be claimed.
  ///   - Ranks have different values of --resume (any two folders count as equal), or find
  ///     different checkpoints, for instance in folders that are not shared.
  ///   - --eval-only is given with --resume latest, and there is no checkpoint.
  ///   - Without --eval-only, the folder of --checkpoint has a file, or a folder of other files,
  ///     with the name of a later step's checkpoint (train::check_names_are_free).
  ///   - --resume never or --resume DIR is given without --eval-only, and the folder of
  ///     --checkpoint has a checkpoint of a later step than the step from which this run starts.
  ///     A later start with --resume latest would resume from that checkpoint, not from this run's.
  Resumed(const CheckpointFlags& flags, const dist::World& world);

  bool found() const { return checkpoint_ != nullptr; }
  /// manifest() and folder() require that a checkpoint was found.
  const train::Manifest& manifest() const { return checkpoint_->manifest(); }
  const std::string& folder() const { return checkpoint_->folder(); }
  int64_t step() const { return found() ? checkpoint_->manifest().step : 0; }
  int64_t skipped() const { return found() ? checkpoint_->manifest().skipped : 0; }
  /// Returns the number of epochs in the first `done` steps. `steps_per_epoch` is the number of
  /// steps in an epoch of this run. If --eval-only evaluates a checkpoint, the steps per epoch that
  /// the checkpoint records are used instead, because the run that wrote the checkpoint may have
  /// had batches of another size. Returns nullopt if such a checkpoint does not record its steps
  /// per epoch, for instance because it was imported.
  std::optional<double> epochs(int64_t done, int64_t steps_per_epoch) const;
  /// Returns the number of threads per rank: `given` if it is not 0. Otherwise the run keeps the
  /// number of threads in the checkpoint, because the bits of the results depend on this number.
  /// If there is no checkpoint, or it records no number of threads, for instance because it was
  /// imported, dist::threads_per_rank decides. Throws InputError if the checkpoint's number is not
  /// a whole number from 1 to 4096.
  int threads(int given, const dist::World& world) const;

  /// Returns the program that wrote the checkpoint, such as "train_gpt". Returns nullopt if the
  /// checkpoint was imported. There must be a checkpoint.
  std::optional<std::string> program() const;
  /// Compares the settings with those of the checkpoint's run. `program` is the name of the running
  /// program, such as "train_gpt". Throws InputError in these cases:
  ///
  ///   - Another program wrote the checkpoint.
  ///   - Settings differ that --resume-changed does not name, or cannot accept (must_agree). The
  ///     message has all of these settings, with both values.
  ///   - --resume-changed names an unknown setting, even if there is no checkpoint. Names that an
  ///     earlier start of the same command may have needed are known (may_be_unrecorded).
  ///
  /// With --eval-only, compares only the settings that the checkpoint's tensors depend on. For an
  /// imported checkpoint, compares only the settings that the import recorded, and the epsilon of
  /// a GPT's norms. An import that recorded no epsilon has the default epsilon. The few settings
  /// that checkpoints of earlier versions may lack are compared only if the checkpoint has them.
  void check(const std::string& program, const dist::Settings& run) const;
  /// Sets the loop's checkpoint options, first step, number of skipped steps and best evaluation so
  /// far. Drops the best evaluation if --resume-changed names a setting that affects evaluations
  /// and has changed.
  ///
  /// Prints the step from which the run continues. For an imported checkpoint, also prints the
  /// settings that the import recorded. For any other checkpoint, except with --eval-only, warns of
  /// each setting in `bits` that differs from the checkpoint's.
  void place(train::LoopOptions& loop, const dist::Settings& run, const dist::Settings& bits) const;
  /// Returns the checkpoint's step, or nullopt if the run starts from the beginning. RunLog removes
  /// the log's lines of later steps, because those steps run again.
  std::optional<int64_t> log_step() const { return found() ? std::optional(step()) : std::nullopt; }
  /// Restores the optimizer's state from the checkpoint, if there is one. Every rank must make this
  /// call.
  void restore(optim::ZeroOptimizer& optimizer) const;
  /// Returns the first line that a started or resumed run writes to the log. In a new log, the line
  /// is `header` with one more member, "layout", which says which rank owns which elements of the
  /// parameters. If a resumed run goes on with an existing log, the line has the type "resume" and
  /// the checkpoint's step, path and digest. Then follow the members that the line would have in a
  /// new log, except the type.
  JsonObject first_line(const train::RunLog& log, JsonObject header,
                        const optim::ZeroOptimizer& optimizer) const;

 private:
  void open(const dist::World& world);
  void check_no_later_steps() const;
  void check_program(const std::string& program) const;
  void check_names(const std::string& program, const dist::Settings& run) const;
  void announce_differences(const dist::Settings& bits) const;
  void drop_other_best(train::LoopOptions& loop, const dist::Settings& run) const;

  const CheckpointFlags& flags_;
  std::unique_ptr<train::CheckpointFolder> claimed_;  // set only on rank 0, if it claims a folder
  std::unique_ptr<train::CheckpointReader> checkpoint_;
};

}  // namespace tessera::apps
