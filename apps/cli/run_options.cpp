#include "apps/cli/run_options.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "apps/cli/changed_settings.h"
#include "apps/cli/command_line.h"
#include "apps/cli/log_file.h"
#include "apps/cli/unwritten_outputs.h"
#include "apps/console/console.h"
#include "apps/console/flags.h"
#include "train/report/progress.h"

namespace tessera::apps {
namespace {

std::string with_default(const std::string& help, const std::string& text) {
  return fmt::format("{} (default: {})", help, text);
}

void add_training(Flags& app, GivenRun& given, RunOptions& options, const RunFlags& flags) {
  const char* group = "Training";
  const DefaultTexts& defaults = flags.defaults;
  app.add_option("--steps", given.steps,
                 with_default("Number of optimizer steps of the run", defaults.steps))
      ->group(group);
  add_batch_options(app, given.batch, group, defaults, flags.samples);
  options.optimizer = flags.optimizer;
  add_optimizer_option(app, options.optimizer, group);
  app.add_option("--lr", given.lr, with_default("Learning rate after the warm-up", defaults.lr))
      ->group(group);
  app.add_option("--min-lr", given.min_lr,
                 with_default("Learning rate at the end of the cosine decay", defaults.min_lr))
      ->group(group);
  app.add_option(
         "--warmup", given.warmup,
         with_default("Steps at the start in which the learning rate rises linearly to --lr",
                      defaults.warmup))
      ->group(group);
  app.add_option("--weight-decay", given.weight_decay, flags.decay)->group(group);
  app.add_option(
         "--beta1", given.beta1,
         with_default("Decay of the first moment in adam and adamw; momentum of sgd", "0.9"))
      ->group(group);
  app.add_option("--beta2", given.beta2,
                 with_default("Decay of the second moment in adam and adamw", defaults.beta2))
      ->group(group);
  options.clip = flags.clip;
  app.add_option("--clip", options.clip, "Largest global norm of the gradient; 0: no clipping")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", given.seed,
                 "Seed of all random numbers, such as initial weights and data order, except "
                 "those of drawn data")
      ->capture_default_str()
      ->group(group);
}

// In the functions below, compare() sets how a flag may differ between ranks. By default, all ranks
// must have the same value. With Compared::presence, all ranks or none must have the flag, but the
// values may differ. With Compared::nothing, some ranks may have the flag and others not.
void add_distribution(Flags& app, GivenRun& given, const DefaultTexts& defaults) {
  const char* group = "Distribution";
  app.add_option("--stage", given.stage, "ZeRO stage: 0, 1, 2 or 3")
      ->capture_default_str()
      ->group(group);
  add_bucket_options(app, given.buckets, defaults);
  add_overlap_option(app, given.overlap);
  add_graph_option(app, given.graph);
  app.add_option("--threads", given.threads,
                 "CPU threads of each rank (default: in a resumed run those of the checkpoint; "
                 "else OMP_NUM_THREADS, else the host's cores divided by the number of its ranks)")
      ->compare(Compared::nothing)  // on CPUs, check_inputs compares the resulting thread counts
      ->group(group);
}

void add_output(Flags& app, GivenRun& given, RunOptions& options, const RunFlags& flags) {
  const char* group = "Output";
  app.add_option("--eval-every", given.eval_every,
                 with_default("Steps between evaluations; 0: none", flags.defaults.eval_every))
      ->group(group);
  app.add_option("--save", options.save, flags.save)->compare(Compared::presence)->group(group);
  app.add_option(
         "--save-every", options.save_every,
         "Also write the weights every N steps, in a folder step-... beside the file of --save")
      ->group(group);
  app.add_flag("--save-best", options.save_best,
               "Also write the weights of the best evaluation so far, in a folder best beside the "
               "file of --save")
      ->group(group);
  app.add_option("--init", options.init, flags.init)->compare(Compared::presence)->group(group);
  app.add_option(
         "--tuned", options.tuned,
         "With CUDA: take the algorithms of matrix products from FILE.json, which tune wrote")
      ->compare(Compared::presence)  // only rank 0 reads the file, and broadcasts it
      ->group("Distribution");
  app.add_option("--log", options.log, "Write a log of the run to FILE.jsonl, as JSON lines")
      ->compare(Compared::nothing)  // only rank 0 writes the log
      ->group(group);
  app.add_option("--trace", options.trace, "Write a Chrome/Perfetto trace to FILE.json")
      ->compare(Compared::presence)
      ->group(group);
  app.add_option("--report", options.report,
                 "Write a page with charts of the run to FILE.html, for a browser; without --log, "
                 "the log is written beside it, to FILE.jsonl")
      ->compare(Compared::presence)  // every rank records the timeline of one step
      ->group(group);
  app.add_option("--csv", options.csv,
                 "Write a table of the steps to FILE.csv at the end of the run; without --log and "
                 "--report, the log is written beside it, to FILE.jsonl")
      ->compare(Compared::nothing)  // only rank 0 writes the table
      ->group(group);
  app.add_option("--tensorboard", options.tensorboard,
                 "Write events for TensorBoard to the folder DIR")
      ->compare(Compared::presence)  // the default of --norms-every depends on this flag
      ->group(group);
  app.add_option("--norms-every", given.norms_every,
                 "Steps between log lines with the norm of each parameter's gradient; 0: none "
                 "(default: a hundredth of all steps with --report or --tensorboard, else 0)")
      ->group(group);
  app.add_flag("--eval-only", options.eval_only,
               "Evaluate the weights of --init or of the newest checkpoint, and end")
      ->group(group);
  app.add_flag("--quiet", options.quiet,
               "Print only warnings, errors and output that other flags ask for")
      ->group(group);
  app.add_option("--color", options.color,
                 "Print in colour: on, off, or auto, which means only on a terminal")
      ->capture_default_str()
      ->one_of({"auto", "on", "off"})
      ->compare(Compared::nothing)
      ->group(group);
  app.add_flag("--plan", options.plan,
               "Print the planned memory and traffic for several numbers of ranks, and end")
      ->group(group);
}

// Refuses --beta1 and --beta2 for optimizers that do not use them: they would have no effect.
void check_moments(const GivenRun& given, const std::string& optimizer) {
  if (given.beta1 && optimizer == "adagrad") {
    fail_input("--beta1 is for --optimizer adamw, adam or sgd, not {}", optimizer);
  }
  if (given.beta2 && optimizer != "adamw" && optimizer != "adam") {
    fail_input("--beta2 is for --optimizer adamw or adam, not {}", optimizer);
  }
}

void check_training(const RunOptions& options) {
  at_least("--steps", options.steps, 1);
  constexpr int64_t most_steps = int64_t{1} << 40;
  at_most("--steps", options.steps, most_steps);
  at_least("--warmup", options.warmup, 0);
  at_most("--warmup", options.warmup, most_steps);
  constexpr int64_t most_samples = int64_t{1} << 62;  // positions in the data must fit int64_t
  if (options.steps > most_samples / options.batch.global) {
    fail_input("{} steps of a global batch of {} are more than 2^62 samples; give fewer --steps",
               options.steps, options.batch.global);
  }
  at_least("--eval-every", options.eval_every, 0);
  at_least("--norms-every", options.norms_every, 0);
  positive("--lr", options.lr);
  within("--beta1", options.beta1, 0, 1);
  within("--beta2", options.beta2, 0, 1);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  within("--weight-decay", options.weight_decay, 0, infinity);
  within("--clip", options.clip, 0, infinity);
  if (!(options.min_lr >= 0 && options.min_lr <= options.lr)) {
    fail_input("--min-lr is {}, expected from 0 to the learning rate, {}", options.min_lr,
               options.lr);
  }
}

// Checks --eval-only: the run must have an evaluation and weights to evaluate. No flag may ask for
// an output file: if the user has copied the flags of the training run that wrote the weights, the
// evaluation would overwrite the files of that run.
void check_eval_only(const RunOptions& options) {
  if (!options.eval_only) return;
  if (options.plan) {
    fail_input("--plan plans training steps, but --eval-only takes none; leave out one of them");
  }
  if (options.eval_every == 0) {
    fail_input(
        "--eval-only: there is nothing to evaluate, because --eval-every is 0 or no data is held "
        "out");
  }
  const bool from_checkpoint = options.checkpoints.resume != "never";
  if (options.init.empty() == !from_checkpoint) {
    fail_input(
        "--eval-only: give the weights to evaluate by exactly one of --init, --checkpoint (its "
        "newest checkpoint is evaluated), or --resume with a checkpoint's folder");
  }
  std::vector<std::string> outputs = output_flags(options);
  std::ranges::copy(flags_of_writing(options.checkpoints), std::back_inserter(outputs));
  if (!outputs.empty()) {
    fail_input("--eval-only writes no file; leave out {}", fmt::join(outputs, ", "));
  }
  if (options.norms_every > 0) fail_input("--eval-only takes no step; leave out --norms-every");
}

// Refuses --norms-every if no output would contain the norms. Only two outputs contain norms: the
// log and TensorBoard's events. With --report or --csv, imply_log has set `log`.
void check_norms(const RunOptions& options) {
  if (options.norms_every == 0 || !options.log.empty() || !options.tensorboard.empty()) return;
  fail_input("--norms-every: nothing would show the norms; give --log, --report or --tensorboard");
}

void check_saves(const RunOptions& options) {
  if (options.save_every) at_least("--save-every", *options.save_every, 1);
  if (options.save.empty() && (options.save_every || options.save_best)) {
    fail_input("{}: give --save, the file beside which the weights are written",
               options.save_every ? "--save-every" : "--save-best");
  }
  if (options.save_best && options.eval_every == 0) {
    fail_input("--save-best: no evaluation says which weights are best; give --eval-every");
  }
}

void fill_min_lr(const GivenRun& given, const TrainDefaults& defaults, RunOptions& options) {
  options.min_lr = given.min_lr.value_or(defaults.min_lr > 0 ? tenth(options.lr) : 0);
  if (given.min_lr) return;
  options.earlier_min_lr =
      given.lr ? options.lr * (defaults.min_lr / defaults.lr) : defaults.min_lr;
}

void check_distribution(const GivenRun& given, RunOptions& options) {
  if (given.stage < 0 || given.stage > 3) {
    fail_input("--stage is {}, expected 0, 1, 2 or 3", given.stage);
  }
  options.stage = static_cast<int>(given.stage);
  if (given.threads < 0 || given.threads > 4096) {
    fail_input("--threads is {}, expected from 1 to 4096, or 0 for the default", given.threads);
  }
  options.threads = static_cast<int>(given.threads);
}

}  // namespace

void add_run_options(Flags& app, GivenRun& given, RunOptions& options, const RunFlags& flags) {
  add_training(app, given, options, flags);
  add_distribution(app, given, flags.defaults);
  add_device_options(app, options.devices);
  add_memory_options(app, options.memory);
  app.add_flag("--verify-data", options.verify_data, flags.verify)->group("Data");
  add_output(app, given, options, flags);
  add_checkpoint_options(app, options.checkpoints);
}

void fill_before_data(const GivenRun& given, RunOptions& options) {
  at_least("--seed", given.seed, 0);
  options.seed = static_cast<uint64_t>(given.seed);
  check_checkpoint_folder("--checkpoint", options.checkpoints.options.folder);
  check_not_a_checkpoint(options.init);
  imply_log(options);
}

void fill_run(const GivenRun& given, const TrainDefaults& defaults, RunOptions& options) {
  fill_before_data(given, options);
  check_distribution(given, options);
  options.steps = given.steps.value_or(defaults.steps);
  options.batch = batch_sizes(given.batch, defaults);
  options.lr = given.lr.value_or(defaults.lr);
  fill_min_lr(given, defaults, options);
  options.warmup = given.warmup.value_or(std::min(defaults.warmup, options.steps / 10));
  options.weight_decay = given.weight_decay.value_or(defaults.weight_decay);
  options.beta1 = given.beta1.value_or(0.9f);
  options.beta2 = given.beta2.value_or(defaults.beta2);
  options.eval_every = given.eval_every.value_or(defaults.eval_every);
  const bool shows_norms = !options.report.empty() || !options.tensorboard.empty();
  options.norms_every =
      given.norms_every.value_or(shows_norms ? std::max<int64_t>(1, options.steps / 100) : 0);
  options.bucket_bytes = bucket_bytes(given.buckets, defaults);
  options.overlap = given.overlap == "on";
  options.graph = given.graph == "on";
  options.reduction = reduction(given.buckets);
  options.checkpoints.only_weights = options.eval_only;
  fill_checkpoints(options.checkpoints);
  check_moments(given, options.optimizer);
  check_training(options);
  check_eval_only(options);
  check_saves(options);
  sum_dtype(options.memory);  // throws if --grad-shard does not fit --precision
}

GivenPaths paths_of(const RunOptions& options, const std::string& config_file) {
  return {.inputs = {{"--data", options.data},
                     {"--init", options.init},
                     {"--tuned", options.tuned},
                     {"--config", config_file}},
          .outputs = {{.flag = options.log_implied ? "the log beside it" : "--log",
                       .path = options.log,
                       .is_log = true},
                      {"--trace", options.trace},
                      {"--report", options.report},
                      {"--csv", options.csv},
                      {"--tensorboard", options.tensorboard},
                      {"--save", options.save, "--init"},
                      {"--checkpoint", options.checkpoints.options.folder}},
          .saves = {.file = options.save,
                    .every = options.save_every.value_or(0),
                    .best = options.save_best,
                    .checkpoints = options.checkpoints.options.folder}};
}

optim::UpdateRule update_rule(const RunOptions& options) {
  if (options.optimizer == "sgd") {
    return optim::Sgd{.learning_rate = options.lr,
                      .momentum = options.beta1,
                      .weight_decay = options.weight_decay,
                      .nesterov = options.nesterov};
  }
  if (options.optimizer == "adam") {
    return optim::Adam{.learning_rate = options.lr,
                       .beta1 = options.beta1,
                       .beta2 = options.beta2,
                       .weight_decay = options.weight_decay};
  }
  if (options.optimizer == "adagrad") {
    return optim::Adagrad{.learning_rate = options.lr, .weight_decay = options.weight_decay};
  }
  return optim::AdamW{.learning_rate = options.lr,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .weight_decay = options.weight_decay};
}

optim::ZeroOptions zero_options(const RunOptions& options) {
  return {
      .stage = options.stage,
      .bucket_bytes = options.bucket_bytes,
      .overlap = options.overlap,
      .reduction = options.reduction,
      .clip = options.clip,
      .schedule = optim::warmup_cosine(options.warmup, options.steps, options.min_lr / options.lr),
      .seed = options.seed,
      .grad_shard = sum_dtype(options.memory),
      .offload = offload(options.memory),
      .graph = options.graph,
      .group_of =
          [](const nn::NamedParameter& named) {
            return named.parameter.shape().rank() >= 2 ? 0 : 1;
          },
      .groups = {{.weight_decay = 0.0f}}};
}

void keep_min_lr(RunOptions& options, const Resumed& resumed) {
  if (!options.earlier_min_lr || !resumed.found()) return;
  const std::string saved = setting_value(resumed.manifest().run, "min_lr");
  if (std::strtof(saved.c_str(), nullptr) == *options.earlier_min_lr) {
    options.min_lr = *options.earlier_min_lr;
  }
}

void print_evaluation(const RunOptions& options, const train::StepWork::Evaluation& result,
                      int64_t step, const dist::World& world) {
  if (world.rank == 0) fmt::print("step {}  {}\n", step, result.text);
  if (result.finite()) return;
  fail("{}", train::non_finite_evaluation(step, parameter_dtype(options.memory) == DType::f16));
}

void set_up_messages(const RunOptions& options, const dist::World& world) {
  outlive_readers();
  train::set_up_messages(
      {.shows = world.rank == 0,
       .quiet = options.quiet,
       .color = options.color == "on" || (options.color == "auto" && train::on_terminal())});
}

train::RunFiles run_files(const RunOptions& options, const Resumed& resumed,
                          const dist::World& world) {
  // check_norms and check_log_file need the path of the log. Other ranks may have been started
  // without --log, because only rank 0 writes the log.
  if (world.rank == 0) {
    check_norms(options);
    check_log_file(options, resumed);
    if (options.save_best) check_save_best(options.save);
  }
  return {.log = options.log,
          .trace = options.trace,
          .report = options.report,
          .csv = options.csv,
          .tensorboard = options.tensorboard,
          .finished = resumed.log_step()};
}

train::TrainingRun training_run(const RunOptions& options) {
  return {.rule = update_rule(options),
          .zero = zero_options(options),
          .loop = {.steps = options.steps,
                   .batch = options.batch,
                   .eval_every = options.eval_every,
                   .norms_every = options.norms_every,
                   .timeline = !options.report.empty(),
                   .checkpoints = options.checkpoints.options,
                   .weights = {.path = options.save,
                               .every = options.save_every.value_or(0),
                               .best = options.save_best}}};
}

}  // namespace tessera::apps
