// The options that all training applications share, with defaults filled in and checked.
//
//   GivenRun given;
//   add_run_options(app, given, options, {.samples = "Images", .optimizer = "sgd", .clip = 0});
//   ... parse ...
//   fill_run(given, defaults, options);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "apps/cli/paths.h"
#include "apps/cli/resume.h"
#include "optim/zero_optimizer.h"
#include "train/step_loop.h"
#include "train/training_run.h"

namespace tessera::apps {

struct RunOptions {
  std::string data;
  bool verify_data = false;  // true: ranks compare all of their input, not only samples of it

  int stage = 2;
  int64_t bucket_bytes = 0;
  bool overlap = true;
  optim::Reduction reduction = optim::Reduction::ordered;
  dist::DeviceOptions devices;
  bool graph = false;
  MemoryOptions memory;  // recompute and loss_rows only for a GPT

  int64_t steps = 0;
  Batch batch;
  std::string optimizer;  // adamw, adam, sgd, adagrad
  bool nesterov = false;
  float lr = 0;
  float min_lr = 0;
  /// The default of min_lr as earlier versions computed it. It may differ from today's default in
  /// the last digit. nullopt: --min-lr is given.
  std::optional<float> earlier_min_lr;
  int64_t warmup = 0;
  float weight_decay = 0;
  float beta1 = 0;  // with sgd: the momentum
  float beta2 = 0;
  float clip = 0;
  uint64_t seed = 0;
  int threads = 0;  // CPU threads per rank; 0: Resumed::threads chooses

  int64_t eval_every = 0;  // steps between evaluations; 0: none

  CheckpointFlags checkpoints;
  std::string save;
  std::optional<int64_t> save_every;  // steps between saves; nullopt: none
  bool save_best = false;
  std::string init;
  std::string tuned;  // file of algorithms for matrix products, written by the program tune
  std::string log;
  bool log_implied = false;  // true: --log is not given; imply_log (log_file.h) chose `log`
  std::string trace;
  std::string report;
  std::string csv;
  std::string tensorboard;
  bool quiet = false;
  std::string color = "auto";  // auto, on, off
  bool eval_only = false;
  int64_t norms_every = 0;  // steps between log lines with gradient norms; 0: none
  bool plan = false;

  /// True if the run saves checkpoints: at its end, on signals and, with --checkpoint-every, at
  /// intervals.
  bool writes_checkpoints() const { return checkpoints.options.wanted() && !eval_only && !plan; }
};

/// Values of flags that fill_run checks and stores in RunOptions. An empty optional means that the
/// flag was not given, and fill_run chooses the default.
struct GivenRun {
  BatchOptions batch;
  BucketOptions buckets;
  std::optional<int64_t> steps, warmup, eval_every, norms_every;
  std::optional<float> lr, min_lr, weight_decay, beta1, beta2;
  std::string overlap = "on";
  std::string graph = "off";
  int64_t stage = 2;
  int64_t threads = 0;
  int64_t seed = 1;
};

/// Help texts and defaults that each application chooses for the shared flags.
struct RunFlags {
  std::string samples;    // what a batch consists of: "Images"
  std::string optimizer;  // default of --optimizer
  std::string decay;      // help of --weight-decay
  std::string save;       // help of --save
  std::string init;       // help of --init
  // help of --verify-data
  std::string verify =
      "Let ranks compare all bytes of the files that they read, instead of samples at 64 places";
  float clip = 0;         // default of --clip
  DefaultTexts defaults = {};
};
/// Adds --verify-data and the shared flags of the groups "Training", "Distribution", "Memory",
/// "Output" and "Checkpoints".
void add_run_options(Flags& app, GivenRun& given, RunOptions& options, const RunFlags& flags);

/// Fills in the seed and the path of the log (imply_log in log_file.h). fill_run does this too. A
/// program that reads its data before fill_run must first call this function, because data may
/// depend on the seed. Throws InputError if the seed is negative, if --checkpoint names a single
/// checkpoint instead of a folder of checkpoints, or if --init names a checkpoint instead of
/// weights (check_not_a_checkpoint).
void fill_before_data(const GivenRun& given, RunOptions& options);

/// Completes `options` from the given flags and from `defaults`. The defaults must be those for the
/// chosen model and optimizer. Throws InputError, with a one-line message, if a value is invalid.
void fill_run(const GivenRun& given, const TrainDefaults& defaults, RunOptions& options);

/// Returns the paths for check_paths: the file of --config, and all paths in the options except
/// that of --resume.
GivenPaths paths_of(const RunOptions& options, const std::string& config_file);

optim::UpdateRule update_rule(const RunOptions& options);
/// Returns the optimizer's options. Weight decay applies to matrices and filters, not to vectors
/// (biases and the weights of norms).
optim::ZeroOptions zero_options(const RunOptions& options);
/// If the checkpoint's min_lr equals options.earlier_min_lr, sets options.min_lr to earlier_min_lr.
/// So a run that an earlier version began with its default min_lr resumes with the same command,
/// and gets the same bits. Does nothing if --min-lr is given.
void keep_min_lr(RunOptions& options, const Resumed& resumed);
/// Prints the result of --eval-only on standard output, on rank 0. Throws on every rank if the
/// score is not finite.
void print_evaluation(const RunOptions& options, const train::StepWork::Evaluation& result,
                      int64_t step, const dist::World& world);
/// Sets up messages as --quiet and --color ask for. Only rank 0 prints. Also calls outlive_readers,
/// so that a run whose output goes into a pipe saves its work if the pipe's reader ends.
void set_up_messages(const RunOptions& options, const dist::World& world);
/// Returns the files that a run writes, except weights and checkpoints. If a checkpoint was found,
/// the log continues after the checkpoint's step. Throws InputError on rank 0 in these cases:
/// check_log_file (log_file.h) refuses the file at the log's path; --norms-every is given, but no
/// output would contain the norms; --save-best cannot write its weights.
train::RunFiles run_files(const RunOptions& options, const Resumed& resumed,
                          const dist::World& world);
/// Returns the update rule, the optimizer's options and the training loop's options.
train::TrainingRun training_run(const RunOptions& options);

}  // namespace tessera::apps
