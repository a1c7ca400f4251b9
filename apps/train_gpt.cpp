// Trains a GPT with ZeRO on any number of ranks.
//
//   train_gpt --data shakespeare.txt                          one rank
//   mpirun -n 4 train_gpt --data shakespeare.txt --stage 2    four ranks
//
// On CPUs, with the same --threads and the default --reduction, the losses have the same bits on
// any number of ranks and at any stage. docs/determinism.md also has the conditions on GPUs.
//
// This file only connects the parts: options -> data, model, optimizer -> steps -> weights, tables
// of memory and traffic, sample. Every rank runs all code that reads the model, because at stage 3
// no rank has all parameters. Only rank 0 prints.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "apps/cli/agreement.h"
#include "apps/cli/changed_settings.h"
#include "apps/cli/command_line.h"
#include "apps/cli/run_header.h"
#include "apps/cli/unwritten_outputs.h"
#include "apps/console/console.h"
#include "apps/console/flag_value.h"
#include "apps/train_gpt_data.h"
#include "apps/train_gpt_options.h"
#include "core/context.h"
#include "core/text/number_text.h"
#include "data/tokens/token_data.h"
#include "data/tokens/token_input.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "models/gpt/gpt.h"
#include "models/gpt/gpt_metadata.h"
#include "models/gpt/gpt_weights.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/evaluate.h"
#include "train/plan/plan_table.h"
#include "train/report/announce.h"
#include "train/sample.h"
#include "train/step_loop.h"
#include "train/tune_gpt.h"
#include "train/tuned_file.h"
#include "train/weights.h"

namespace tessera::apps {
namespace {

JsonObject header_line(const TrainOptions& options, const dist::World& world,
                       int64_t parameter_count) {
  JsonObject model;
  model.add("layers", options.model.layers)
      .add("heads", options.model.heads)
      .add("width", options.model.width)
      .add("context", options.model.context)
      .add("vocab", options.model.vocab)
      .add("dropout", options.model.dropout);
  // Weights of another program may come with another epsilon of the layer norms than Tessera's.
  // Checkpoints record the members of the header, so a resume with a different epsilon is refused.
  const float epsilon = options.model.epsilon;
  if (epsilon != models::GptConfig().epsilon) model.add("epsilon", epsilon);
  model.add("parameters", parameter_count);
  JsonObject header = header_begin("train_gpt", options);
  header.add("val_data", options.val_data).add("preset", options.name).add("model", model);
  add_run(header, options, world);
  return header.add("eval_batches", options.eval_batches).add("sample", options.sample);
}

// Chooses the algorithms of matrix products on CUDA. The first of these cases that applies decides:
//
//   --tuned FILE       the table of algorithms in FILE, which the caller has loaded
//   resume of a run    the table of that run. If the run had none, cuBLASLt's first proposals. If
//                      a rank cannot use the table, prints a warning, and the cases below decide
//   unequal GPUs       cuBLASLt's first proposals, because a table holds for one kind of GPU and
//                      one version of the library (World::difference)
//   --tune on          the algorithms that are the fastest in measurements
//   --tune off         cuBLASLt's first proposals
//
// The second case does not apply to an imported checkpoint, because no run wrote the checkpoint.
void choose_algorithms(const TrainOptions& options, const Resumed& resumed, dist::World& world) {
  if (!options.tuned.empty() || world.communicator->device().is_cpu()) return;
  if (resumed.found() && resumed.manifest().imported.empty()) {
    if (resumed.manifest().tuned.empty()) return;  // the run had no table of algorithms
    const std::string why =
        train::try_tuned_text(resumed.folder(), resumed.manifest().tuned, world);
    if (why.empty()) return;
    spdlog::warn("{}", why);
  }
  if (!options.tune) return;
  if (!world.difference.empty()) {
    spdlog::info("no algorithms are measured, because {}; the library's first proposals are taken",
                 world.difference);
    return;
  }
  train::tune_gpt({.model = options.model,
                   .dtype = parameter_dtype(options.memory),
                   .micro_batch = options.batch.micro},
                  world);
}

// One training run of a rank, with everything that its steps need.
class Run {
 public:
  Run(const TrainOptions& options, const Resumed& resumed, dist::World& world)
      : options_(options),
        resumed_(resumed),
        world_(world),
        prints_(world.rank == 0),
        training_(training_run(options)),
        model_(options.model),
        data_(open_data(options)) {
    model_.to(parameter_dtype(options.memory));
    set_thread_count(resumed.threads(options.threads, world));
    if (world.size > 1) {
      dist::Settings inputs = data_settings(options, data_);
      for (const dist::Setting& setting : init_settings(options)) inputs.push_back(setting);
      check_inputs(world, options, resumed, inputs);
    }
    std::unique_ptr<models::GptWeights> weights;
    const bool begins = !resumed.found();  // a resumed run has the checkpoint's weights
    if (begins && !options.init.empty())
      weights = std::make_unique<models::GptWeights>(options.init, model_);
    check_destinations();
    optim::ZeroOptimizer::check(model_, training_.rule, world, training_.zero);
    choose_algorithms(options, resumed, world);
    left_ = go_on();
    if (left_ == Left::nothing) return;
    // The checks precede begin_run, so that a refused run does not change an older log. begin_run
    // starts counting memory and traffic, so it precedes the input and the optimizer.
    if (left_ == Left::steps) files_ = run_files(options, resumed, world);
    files_.save = options.save;
    log_ = train::begin_run(files_, world);
    input_ = std::make_unique<data::TokenInput>(
        data_, data::TokenInput::Sizes{options.batch.micro, options.model.context});
    optimizer_ =
        std::make_unique<optim::ZeroOptimizer>(model_, training_.rule, world, training_.zero);
    if (weights) optimizer_->set_parameters(weights->source());
    resumed.restore(*optimizer_);
  }

  void train() {
    if (left_ == Left::nothing) return;
    if (left_ == Left::save) return end_save(save(), options_, resumed_, world_);
    if (options_.eval_only) return evaluate_only();
    // The loop's constructor may refuse the run, so it precedes the first line of the log.
    train::StepLoop loop(
        training_.loop, world_, *optimizer_, *log_,
        {.unit = "tokens",
         .units_per_step = options_.batch.global * options_.model.context,
         .forward =
             [this](const MicroBatch& micro) {
               const auto sequences = data_.read(micro);
               return model_.loss(sequences.tokens, sequences.targets);
             },
         .load = [this](const MicroBatch& micro) { input_->load(micro); },
         .loss = [this] { return model_.loss(input_->tokens(), input_->targets()); },
         .evaluate = [this](int64_t done) { return evaluation(done); },
         .open_weights = [this](const std::string& path, int64_t) { return open_weights(path); },
         .run = run_settings_,
         .bits = bits_settings("train_gpt", world_),
         .weights = models::gpt_metadata(model_.config())});
    announce();
    train::warn_of_idle_ranks(options_.batch, world_);
    train::run_to_end(
        loop, files_, world_, [&] { return finish(loop.count()); }, [&] { return save(); });
  }

 private:
  JsonObject header() const { return header_line(options_, world_, model_.parameter_count()); }

  // Evaluates the weights of --init or of the checkpoint, and prints the result and the sample on
  // standard output.
  void evaluate_only() {
    announce();
    print_evaluation(options_, evaluation(resumed_.step()), resumed_.step(), world_);
    print_sample();
  }

  // Prepares the loop for checkpoints, and collects the settings that checkpoints record. If the
  // run resumes from a checkpoint, checks that the checkpoint belongs to this run, and starts the
  // loop at the checkpoint's step. Returns what is left to do.
  Left go_on() {
    if (!resumed_.found() && !options_.checkpoints.options.wanted()) return Left::steps;
    run_settings_ = run_settings(header());
    for (const dist::Setting& setting : training_settings(options_, data_)) {
      run_settings_.push_back(setting);
    }
    resumed_.check("train_gpt", run_settings_);
    const std::vector<std::string> others = given_flags({{"--sample", options_.sample > 0}});
    const Left left = left_to_do(options_, resumed_, others);
    if (left != Left::steps) return left;
    training_.loop.weights.evaluated = measure(options_, data_);
    resumed_.place(training_.loop, run_settings_, bits_settings("train_gpt", world_));
    return Left::steps;
  }

  void announce() {
    log_->write(resumed_.first_line(*log_, header(), *optimizer_));
    train::announce_run(training_, options_.name, model_, world_);
    spdlog::info("{}: {} tokens to train on, {} to validate", options_.data,
                 grouped(data_.training().size()), grouped(data_.validation().size()));
    warn_of_gzip(*data_.training().file);
    if (!options_.val_data.empty()) warn_of_gzip(*data_.validation().file);
    const std::string mixed = warning_of_formats(options_, data_);
    if (!mixed.empty()) spdlog::warn("{}", mixed);
  }

  static void warn_of_gzip(const data::TokenFile& file) {
    if (!file.is_gzip()) return;
    spdlog::warn("{}: is compressed by gzip, and the compressed bytes are taken for the text",
                 file.path());
  }

  train::StepWork::Evaluation evaluation(int64_t done) {
    const float loss = train::evaluate(
        model_, data_.validation(),
        {.batches = options_.eval_batches, .sequences = options_.batch.micro}, world_);
    train::StepWork::Evaluation result{train::eval_line(done, loss),
                                       fmt::format("validation loss {:.4f}", loss),
                                       train::Score{.value = loss}};
    const double nats = loss;
    const double perplexity = std::exp(nats);
    result.line.add("perplexity", static_cast<float>(perplexity));
    result.text += fmt::format("  perplexity {:.{}f}", perplexity, perplexity < 100 ? 3 : 1);
    if (!data_.validation().file->is_text()) return result;
    const double bits = nats / std::numbers::ln2;  // a token of a text is a byte
    result.line.add("bits_per_byte", static_cast<float>(bits));
    result.text += fmt::format("  {:.4f} bits per byte", bits);
    return result;
  }

  // Reports on the run, and writes the weights, the trace and the sample. If one of these outputs
  // cannot be written, still writes the others, and returns the reason of the first failure.
  // Otherwise returns an empty text.
  std::string finish(const train::StepCount& count) {
    std::string failure;
    const optim::Plan planned =
        train::plan_run(train::as_it_went(training_, count), model_, train::place_of(world_));
    train::report_run(planned, count, world_, *log_, [&] {
      failure = save();
      failure = train::try_to_write_trace(files_, world_, failure);
      // print_sample throws if the logits are NaN. The job still writes its other outputs before it
      // fails.
      if (options_.sample > 0) {
        train::attempt_together(failure, world_, [this] { print_sample(); });
      }
    });
    return failure;
  }

  // Called on rank 0 when weights are about to be written. Checks the folder again: since the call
  // of check_destinations, another program may have saved weights in it.
  train::WeightsSink open_weights(const std::string& path) const {
    models::check_gpt_destination(path, model_.config());
    const auto writer = std::make_shared<models::GptWriter>(path, model_);
    return {.write = [writer](const nn::NamedParameter& named,
                              std::span<const float> values) { writer->write(named, values); },
            .commit = [writer] { writer->commit(); }};
  }

  // Writes the weights of --save, if it is given. Returns why this failed, or an empty text.
  std::string save() {
    if (options_.save.empty()) return "";
    return train::save_or_rescue(options_.save, *optimizer_, world_,
                                 [this](const std::string& path) { return open_weights(path); });
  }

  // Throws, before the run begins, if the weights of --save could not be written. Also throws if
  // writing them would replace a config.json that does not describe a GPT-2, or one that other
  // weights in the folder need. Checks the best weights of --save-best in the same way. In their
  // folder, also refuses a config.json of a GPT whose sizes or epsilon differ from this model's.
  void check_destinations() const {
    if (world_.rank != 0 || options_.save.empty()) return;
    models::check_gpt_destination(options_.save, model_.config());
    if (!options_.save_best) return;
    check_save_best(options_.save);
    const std::string best = train::best_weights_path(options_.save);
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::path(best).parent_path(), error)) return;
    models::check_gpt_destination(best, model_.config());
    models::check_gpt_config_beside(best, model_);
  }

  void print_sample() {
    if (options_.sample == 0) return;
    const bool bytes = data_.training().file->is_text();
    const auto print = [&](const std::string& text) {
      if (prints_) std::fwrite(text.data(), 1, text.size(), stdout);
    };
    print("--- sample\n");
    train::sample(model_, {train::default_prompt(options_.model, bytes)},
                  {.tokens = options_.sample, .seed = options_.seed},
                  [&](int32_t token) { print(train::token_text(token, bytes)); });
    print("\n---\n\n");
  }

  const TrainOptions& options_;
  const Resumed& resumed_;
  dist::Settings run_settings_;
  dist::World& world_;
  bool prints_;  // true only on rank 0
  train::TrainingRun training_;
  models::Gpt model_;
  data::TokenData data_;
  std::unique_ptr<data::TokenInput> input_;
  Left left_ = Left::steps;
  train::RunFiles files_;
  std::unique_ptr<train::RunLog> log_;
  std::unique_ptr<optim::ZeroOptimizer> optimizer_;
};

std::string plan_text(const TrainOptions& options, const dist::World& world) {
  set_thread_count(dist::threads_per_rank(options.threads, world.local_size));
  models::Gpt model(options.model);
  model.to(parameter_dtype(options.memory));
  return train::plan_table({.model_name = options.name,
                            .parameters = model.parameter_count(),
                            .dtype = train::parameter_dtype(model),
                            .optimizer = options.optimizer},
                           training_run(options),
                           {.device = train::plan_device(options.devices), .ranks = world.size},
                           [&](const train::TrainingRun& run, const train::JobPlace& place) {
                             return train::plan_run(run, model, place);
                           });
}

// Returns the epsilon of the norms with which the checkpoint was trained. Checkpoints do not record
// the default.
float epsilon_of(const Resumed& resumed) {
  const char* name = "model.epsilon";
  const dist::Settings& saved = resumed.manifest().run;
  if (!has_setting(saved, name)) return models::GptConfig().epsilon;
  return parse_float<float>(fmt::format("{}: {}", resumed.folder(), name),
                            setting_value(saved, name));
}

int run(int argc, char** argv, dist::World& world) {
  train::set_up_messages(world.rank == 0);
  auto [options, help, flags] = parse_command_line(argc, argv);
  // Reading the data may take long, so signals that come meanwhile are kept for the first step.
  const train::EarlySignals signals(options.writes_checkpoints());
  check_command_lines(world, "train_gpt", flags, options.devices);
  if (!help.empty() || options.plan) {
    if (help.empty()) warn_of_plan(options);
    if (world.rank == 0) fmt::print("{}", help.empty() ? plan_text(options, world) : help);
    return 0;
  }
  set_up_messages(options, world);
  dist::choose_devices(world, options.devices);
  if (!options.tuned.empty()) train::use_tuned_file(options.tuned, world);
  const Resumed resumed(options.checkpoints, world);
  // With --eval-only and a checkpoint, the epsilon can come only from the checkpoint: no flag sets
  // it, and --init is refused.
  if (options.eval_only && resumed.found()) options.model.epsilon = epsilon_of(resumed);
  keep_min_lr(options, resumed);
  Run training(options, resumed, world);
  training.train();
  return 0;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::apps::run_job(argc, argv, [&](tessera::dist::World& world) {
    return tessera::apps::run(argc, argv, world);
  });
}
