// Trains a recommender by collaborative filtering with ZeRO on any number of ranks.
//
//   train_recommender                                        one rank, synthetic ratings
//   mpirun -n 4 train_recommender --data ml-100k/u.data      four ranks, ratings of MovieLens 100K
//
// With the same --threads and the default --reduction, the losses have the same bits on any number
// of ranks (docs/determinism.md).
// This file only connects the parts: options -> data, model, optimizer -> steps -> weights, report.
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "apps/cli/agreement.h"
#include "apps/cli/command_line.h"
#include "apps/cli/run_header.h"
#include "apps/cli/unwritten_outputs.h"
#include "apps/train_recommender_options.h"
#include "apps/train_recommender_task.h"
#include "core/context.h"
#include "data/ratings/rating_data.h"
#include "data/ratings/rating_digest.h"
#include "data/ratings/rating_input.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "models/recommender/recommender_file.h"
#include "nn/weights_file.h"
#include "optim/plan/plan_tables.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/plan/plan_table.h"
#include "train/ratings/scoring.h"
#include "train/report/announce.h"
#include "train/step_loop.h"
#include "train/tuned_file.h"
#include "train/weights.h"

namespace tessera::apps {
namespace {

data::RatingData open_data(const RecommenderTrainOptions& options) {
  data::RatingData data = data::open_rating_data({.path = options.data,
                                                  .columns = options.columns,
                                                  .split = options.split,
                                                  .seed = options.seed});
  if (!data.has_ratings && !options.ranks) {
    fail_input("{}: it has no ratings; give --objective ranking", options.data);
  }
  return data;
}

// Checks that all ranks have the same data. Must be called before `complete`, which would derive
// different numbers of steps from different data.
void check_data(const dist::World& world, const data::RatingData& data) {
  if (world.size == 1) return;  // no other rank to compare with
  dist::check_agreement(
      world, {{"--data", fmt::format("{}: {}, with digest {:016x}", data.format, data.description(),
                                     digest_of_ratings(data))}});
}

train::TrainingRun training_run_of(const RecommenderTrainOptions& options) {
  train::TrainingRun run = training_run(options);
  if (options.rowwise) {
    run.zero.table_rule = optim::RowwiseAdagrad{.learning_rate = options.lr};
  }
  return run;
}

// One training run of a rank, with everything that its steps need.
class Run {
 public:
  Run(const RecommenderTrainOptions& options, const RecommenderTask& task, const Resumed& resumed,
      dist::World& world)
      : options_(options),
        resumed_(resumed),
        world_(world),
        training_(training_run_of(options)),
        task_(task),
        model_(task.build(options)) {
    set_thread_count(resumed.threads(options.threads, world));
    check_inputs(world, options, resumed, {});
    left_ = go_on();
    if (left_ == Left::nothing) return;
    std::unique_ptr<nn::WeightsFile> weights;
    const bool begins = !resumed.found();  // a resumed run has the checkpoint's weights
    if (begins && !options.init.empty()) {
      models::check_same_sizes(options.init, task.config);
      models::check_same_ids(options.init, task.data.user_ids, task.data.item_ids);
      weights = std::make_unique<nn::WeightsFile>(options.init, *model_,
                                                  models::recommender_tensor_names());
    }
    optim::ZeroOptimizer::check(*model_, training_.rule, world, training_.zero);
    // The checks precede begin_run, so that a refused run does not change an older log. begin_run
    // starts counting memory and traffic, so it precedes the input and the optimizer.
    if (left_ == Left::steps) files_ = run_files(options, resumed, world);
    files_.save = options.save;
    log_ = train::begin_run(files_, world);
    input_ = std::make_unique<data::RatingInput>(task.batches);
    optimizer_ =
        std::make_unique<optim::ZeroOptimizer>(*model_, training_.rule, world, training_.zero);
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
        {.unit = "samples",
         .units_per_step = options_.batch.global,
         .forward = [this](const MicroBatch& micro) { return loss(task_.batches.read(micro)); },
         .load = [this](const MicroBatch& micro) { input_->load(micro); },
         .loss = [this] { return loss(input_->batch()); },
         .evaluate = [this](int64_t done) { return evaluation(done); },
         .open_weights =
             [this](const std::string& path, int64_t) {
               return train::open_weights(path, *model_, save_options());
             },
         .describe =
             [this](int64_t step) { return JsonObject().add("epoch", task_.batches.epoch(step)); },
         .run = run_settings_,
         .bits = bits_settings("train_recommender", world_),
         .weights = models::recommender_metadata({.config = task_.config,
                                                  .objective = options_.objective_name(),
                                                  .lowest = task_.range.lowest,
                                                  .highest = task_.range.highest})});
    announce();
    train::warn_of_idle_ranks(options_.batch, world_);
    train::run_to_end(
        loop, files_, world_, [&] { return finish(loop.count()); }, [&] { return save(); });
  }

 private:
  Tensor loss(const data::RatingBatch& batch) {
    const models::RecommenderInput input = train::recommender_input(batch, options_.l2 > 0);
    return models::recommender_loss(model_->score(input), batch.targets, options_.objective,
                                    options_.l2);
  }

  // Evaluates the weights of --init or of the checkpoint, and prints the result on standard output.
  void evaluate_only() {
    announce();
    print_evaluation(options_, evaluation(resumed_.step()), resumed_.step(), world_);
  }

  // Prepares the loop for checkpoints, and collects the settings that checkpoints record. If the
  // run resumes from a checkpoint, checks that the checkpoint belongs to this run, and starts the
  // loop at the checkpoint's step. Returns what is left to do.
  Left go_on() {
    if (!resumed_.found() && !options_.checkpoints.options.wanted()) return Left::steps;
    run_settings_ = run_settings(header({}));
    run_settings_.push_back({"data", fmt::format("{:016x}", digest_of_ratings(task_.data))});
    run_settings_.push_back(
        {"ids", models::digest_of_ids(task_.data.user_ids, task_.data.item_ids)});
    resumed_.check("train_recommender", run_settings_);
    const Left left = left_to_do(options_, resumed_);
    if (left != Left::steps) return left;
    if (task_.ranking) training_.loop.weights.evaluated = task_.ranking->measure();
    resumed_.place(training_.loop, run_settings_, bits_settings("train_recommender", world_));
    return Left::steps;
  }

  void announce() {
    std::optional<train::RankingQuality> popularity;  // only on rank 0, which writes the log
    if (task_.ranking && world_.rank == 0) popularity = task_.ranking->popularity();
    log_->write(resumed_.first_line(*log_, header(popularity), *optimizer_));
    train::announce_run(training_, options_.model.name, *model_, world_);
    const std::string advice =
        optim::dense_table_advice(plan_input(training_, *model_, train::place_of(world_)));
    if (!advice.empty()) spdlog::warn("{}; or leave out {}", advice, options_.dense_flags);
    spdlog::info("{}: {}", options_.data.empty() ? task_.data.format : options_.data,
                 task_.data.description());
    if (!popularity) return;
    spdlog::info("Popularity alone, among {}: hr@{} {:.4f}, ndcg@{} {:.4f}",
                 task_.ranking->protocol(), options_.top, popularity->hit_rate, options_.top,
                 popularity->ndcg);
  }

  JsonObject header(const std::optional<train::RankingQuality>& popularity) const {
    JsonObject model;
    model.add("name", options_.model.name)
        .add("users", task_.config.users)
        .add("items", task_.config.items)
        .add("factors", task_.config.factors);
    if (options_.model.name == "neumf") {
      model.add("hidden", fmt::format("{}", fmt::join(task_.config.hidden, ",")));
    }
    model.add("parameters", model_->parameter_count());
    JsonObject line = header_begin("train_recommender", options_);
    line.add("format", task_.data.format).add("split", options_.split).add("model", model);
    add_run(line, options_, world_);
    line.add("epochs", options_.epochs)
        .add("steps_per_epoch", task_.batches.steps_per_epoch())
        .add("objective", options_.objective_name())
        .add("negatives", options_.negatives)
        .add("tables", options_.sparse ? "sparse" : "dense")
        .add("table_optimizer", options_.rowwise ? "rowwise-adagrad" : "same")
        .add("l2", options_.l2);
    if (popularity) {
      line.add("protocol", task_.ranking->protocol()).add("popularity", quality(*popularity));
    }
    return line;
  }

  JsonObject quality(const train::RankingQuality& quality) const {
    return JsonObject()
        .add(fmt::format("hr@{}", options_.top), quality.hit_rate)
        .add(fmt::format("ndcg@{}", options_.top), quality.ndcg)
        .add(fmt::format("recall@{}", options_.top), quality.recall)
        .add("mrr", quality.mrr);
  }

  train::StepWork::Evaluation evaluation(int64_t done) {
    JsonObject line;
    line.add("type", "eval").add("step", done);
    const std::string epoch =
        add_epoch(line, resumed_.epochs(done, task_.batches.steps_per_epoch()));
    if (!task_.ranking) {
      const train::RatingErrors errors =
          train::evaluate_ratings(*model_, task_.histories, task_.data.validation, task_.range,
                                  options_.batch.micro, world_);
      line.add("rmse", errors.rmse).add("mae", errors.mae);
      return {line, fmt::format("{}rmse {:.4f}  mae {:.4f}", epoch, errors.rmse, errors.mae),
              train::Score{.value = errors.rmse}};
    }
    const train::RankingQuality found = train::evaluate_ranking(*model_, *task_.ranking, world_);
    line.append(quality(found)).add("protocol", task_.ranking->protocol());
    return {line,
            fmt::format("{}hr@{} {:.4f}  ndcg@{} {:.4f}  among {}", epoch, options_.top,
                        found.hit_rate, options_.top, found.ndcg, task_.ranking->protocol()),
            train::Score{.value = found.ndcg, .higher_is_better = true}};
  }

  // Returns why the weights or the trace were not written, or an empty text.
  std::string finish(const train::StepCount& count) {
    std::string failure;
    const optim::Plan plan = train::plan_run(train::as_it_went(training_, count), *model_,
                                             task_.planned(options_), train::place_of(world_));
    train::report_run(plan, count, world_, *log_, [&] {
      failure = save();
      failure = train::try_to_write_trace(files_, world_, failure);
    });
    return failure;
  }

  // Writes the weights of --save, if it is given. Returns why this failed, or an empty text.
  std::string save() {
    if (options_.save.empty()) return "";
    return train::save_or_rescue(options_.save, *optimizer_, world_,
                                 [this](const std::string& path) {
                                   return train::open_weights(path, *model_, save_options());
                                 });
  }

  train::SaveOptions save_options() const {
    const models::RecommenderFile file = task_.file(options_);
    return {.metadata = models::recommender_metadata(file),
            .others = models::recommender_tensors(file)};
  }

  const RecommenderTrainOptions& options_;
  const Resumed& resumed_;
  dist::Settings run_settings_;
  dist::World& world_;
  train::TrainingRun training_;
  const RecommenderTask& task_;
  std::unique_ptr<models::Recommender> model_;
  std::unique_ptr<data::RatingInput> input_;
  Left left_ = Left::steps;
  train::RunFiles files_;
  std::unique_ptr<train::RunLog> log_;
  std::unique_ptr<optim::ZeroOptimizer> optimizer_;
};

std::string plan_text(const RecommenderTrainOptions& options, const RecommenderTask& task,
                      const dist::World& world) {
  set_thread_count(dist::threads_per_rank(options.threads, world.local_size));
  const auto model = task.build(options);
  const train::PlannedRatings ratings = task.planned(options);
  return train::plan_table({.model_name = options.model.name,
                            .parameters = model->parameter_count(),
                            .dtype = train::parameter_dtype(*model),
                            .optimizer = options.optimizer},
                           training_run_of(options),
                           {.device = train::plan_device(options.devices), .ranks = world.size},
                           [&](const train::TrainingRun& run, const train::JobPlace& place) {
                             return train::plan_run(run, *model, ratings, place);
                           });
}

int run(int argc, char** argv, dist::World& world) {
  train::set_up_messages(world.rank == 0);
  RecommenderCommandLine line = parse_recommender_command_line(argc, argv);
  // Reading the data may take long, so signals that come meanwhile are kept for the first step.
  const train::EarlySignals signals(line.options.writes_checkpoints());
  check_command_lines(world, "train_recommender", line.settings, line.options.devices);
  if (!line.help.empty()) {
    if (world.rank == 0) fmt::print("{}", line.help);
    return 0;
  }
  const data::RatingData data = open_data(line.options);
  check_data(world, data);
  complete(line, data.train.size());
  const RecommenderTrainOptions& options = line.options;
  RecommenderTask task(options, data);
  if (options.plan) {
    warn_of_plan(options);
    if (world.rank == 0) fmt::print("{}", plan_text(options, task, world));
    return 0;
  }
  set_up_messages(options, world);
  dist::choose_devices(world, options.devices);
  if (!options.tuned.empty()) train::use_tuned_file(options.tuned, world);
  const Resumed resumed(options.checkpoints, world);
  if (options.eval_only) task.use(saved_weights(options, resumed));
  Run training(options, task, resumed, world);
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
