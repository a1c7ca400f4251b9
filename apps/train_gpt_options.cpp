#include "apps/train_gpt_options.h"

#include <limits>
#include <string>

#include "apps/cli/command_line.h"
#include "apps/cli/repeated_inputs.h"
#include "apps/console/flags.h"
#include "apps/cli/train_defaults.h"
#include "models/gpt/gpt_config_file.h"
#include "models/gpt/gpt_sizes.h"

namespace tessera::apps {
namespace {

void add_data_and_model(Flags& app, ModelOptions& model, TrainOptions& options) {
  const char* group = "Data";
  app.add_option("--data", options.data,
                 "Training data: text, read as bytes, or a .bin file of uint16 tokens from nanoGPT "
                 "or llm.c")
      ->compare(Compared::presence)
      ->group(group);
  app.add_option("--val-data", options.val_data,
                 "Validation data, in the same formats (default: the last 10 % of --data, left out "
                 "of training)")
      ->compare(Compared::presence)
      ->group(group);

  add_model_options(app, model);
  app.add_option("--dropout", options.model.dropout, "Probability of dropout, in [0, 1)")
      ->capture_default_str()
      ->group("Model");
}

void add_tune(Flags& app, std::string& tune) {
  app.add_option("--tune", tune,
                 "With CUDA and without --tuned: measure the algorithms of matrix products before "
                 "the first step, and use the fastest. A resumed run keeps its algorithms")
      ->one_of({"on", "off"})
      ->capture_default_str()
      ->group("Distribution");
}

void add_evaluation(Flags& app, TrainOptions& options) {
  const char* group = "Output";
  app.add_option("--eval-batches", options.eval_batches,
                 "Micro-batches in each evaluation; 0: all validation data")
      ->capture_default_str()
      ->group(group);
  app.add_option("--sample", options.sample,
                 "Tokens to sample from the trained model at the end; 0: none")
      ->capture_default_str()
      ->group(group);
}

void fill_model(const ModelOptions& given, TrainOptions& options) {
  const float dropout = options.model.dropout;
  ModelOptions sizes = given;
  if (!options.init.empty()) {
    check_not_a_checkpoint(options.init);
    options.init = models::gpt_weights_path(options.init);
    sizes = with_sizes_of(options.init, given);
  }
  within("--dropout", dropout, 0, 1);
  check_loss_rows(options.memory);
  options.preset = preset_of(sizes);
  options.model = model_config(sizes);
  options.name = models::gpt_name(options.model);
  options.model.dropout = dropout;
  options.model.recompute = options.memory.recompute;
  options.model.loss_chunk_rows = options.memory.loss_rows;
  options.model.validate();
}

TrainDefaults defaults_for(const TrainOptions& options) {
  TrainDefaults defaults = train_defaults(options.preset);
  defaults.weight_decay = options.optimizer == "adamw" ? 0.1f : 0.0f;
  if (options.optimizer == "sgd") {
    // Adam divides by the root of the second moment. SGD does not, and gradients are small, so
    // SGD's learning rate must be larger.
    defaults.lr *= 100;
    defaults.min_lr *= 100;
  }
  return defaults;
}

void check_evaluation(const TrainOptions& options) {
  at_least("--eval-batches", options.eval_batches, 0);
  at_most("--eval-batches", options.eval_batches, int64_t{1} << 20);
  at_least("--sample", options.sample, 0);
}

// Checks the paths. A config.json beside the weights is read and written with the weights, so its
// path is checked too.
void check_files(const TrainOptions& options, const std::string& config_file) {
  constexpr const char* of_init = "--init's config.json";
  const auto beside = [](const std::string& weights) {
    return weights.empty() ? "" : models::config_path_beside(weights);
  };
  GivenPaths paths = paths_of(options, config_file);
  paths.inputs.push_back({"--val-data", options.val_data});
  paths.inputs.push_back({of_init, beside(options.init)});
  paths.outputs.push_back({"--save's config.json", beside(options.save), of_init});
  paths.saves.others = {"config.json"};
  check_paths(paths);
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine result;
  TrainOptions& options = result.options;
  ModelOptions model;
  GivenRun given;
  Flags app("Trains a GPT with ZeRO on any number of ranks: mpirun -n N train_gpt --data FILE",
            "train_gpt");
  app.add_config("Read flags from a file with lines such as steps = 100");
  add_data_and_model(app, model, options);
  add_run_options(
      app, given, options,
      {.samples = "Sequences",
       .optimizer = "adamw",
       .decay = "Weight decay of matrices (default: adamw 0.1, others 0)",
       .save = "Write the weights at the end to FILE.safetensors, and config.json beside it",
       .init = "Begin with the weights of FILE.safetensors, or of model.safetensors in the folder "
               "DIR; they set the model's sizes",
       .clip = 1,
       .defaults = gpt_default_texts()});
  add_recompute_option(app, options.memory);
  add_loss_rows_option(app, options.memory);
  add_evaluation(app, options);
  std::string tune = "on";
  add_tune(app, tune);
  result.help = app.parse(argc, argv);
  result.settings = app.settings();
  if (!result.help.empty()) return result;
  fill_model(model, options);
  const TrainDefaults defaults = defaults_for(options);
  if (options.eval_only) {
    constexpr int64_t any = std::numeric_limits<int64_t>::max();  // no limit: windows may overlap
    given.batch = evaluation_batch(given.batch, defaults, any);
  }
  fill_run(given, defaults, options);
  check_evaluation(options);
  options.tune = tune == "on";
  if (options.data.empty() && !options.plan) fail_input("--data is required");
  check_files(options, app.config_file());
  warn_of_repeated_inputs(app);
  return result;
}

dist::Settings init_settings(const TrainOptions& options) {
  return {{"heads (--heads or config.json of --init)", std::to_string(options.model.heads)},
          {"epsilon (config.json of --init)", fmt::format("{}", options.model.epsilon)},
          {"preset (--preset or sizes of --init)", options.preset}};
}

}  // namespace tessera::apps
