#include "apps/train_recommender_options.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/ranges.h>

#include "apps/cli/command_line.h"
#include "apps/cli/repeated_inputs.h"
#include "apps/console/console.h"
#include "apps/console/flags.h"
#include "data/ratings/rating_layout.h"
#include "data/ratings/rating_split.h"

namespace tessera::apps {
namespace {

struct Given {
  std::optional<std::string> split;
  std::string objective = "rating";
  std::optional<std::string> loss;
  std::vector<int32_t> hidden;
  std::optional<int64_t> negatives;
  std::optional<int64_t> top;
  std::optional<float> l2;
};

void add_data(Flags& app, RecommenderTrainOptions& options, Given& given) {
  const char* group = "Data";
  app.add_option("--data", options.data,
                 "Ratings: MovieLens (u.data, ratings.dat, ratings.csv), RecBole's .inter, or any "
                 "text with --columns, plain or gzipped (default: ratings that the program draws)")
      ->compare(Compared::presence)
      ->group(group);
  app.add_option(
         "--columns", options.columns,
         "Columns of --data: user, item, rating and time, in the order of the file, with - for "
         "others, such as user,item,rating,-; rating and time may be missing; header:user,item,... "
         "if the first line has names")
      ->group(group);
  app.add_option(
         "--split", given.split,
         "Ratings held out for evaluation: fold:k/K, part k of K; last, each user's latest; "
         "time:F, the latest fraction F; none (default: fold:1/5, for ranking last)")
      ->group(group);
}

void add_model(Flags& app, RecommenderTrainOptions& options, Given& given) {
  const char* group = "Model";
  const std::vector<std::string> names = models::recommender_names();
  app.add_option("--model", options.model.name, fmt::format("Model: {}", fmt::join(names, ", ")))
      ->capture_default_str()
      ->one_of(names)
      ->group(group);
  app.add_option("--factors", options.model.factors, "Width of the user and item embeddings")
      ->capture_default_str()
      ->group(group);
  app.add_option("--hidden", given.hidden,
                 "With --model neumf: widths of the MLP's layers; the first is that of the user's "
                 "and the item's embedding together (default: 64,32,16)")
      ->list(',')
      ->group(group);
}

void add_tables(Flags& app, RecommenderCommandLine& given) {
  const char* group = "Model";
  app.add_option("--tables", given.tables,
                 "Embedding tables: sparse sends and updates only the rows that a batch reads, "
                 "dense all rows (default: sparse, but dense with --weight-decay or --graph)")
      ->one_of({"dense", "sparse"})
      ->group(group);
  app.add_option("--table-optimizer", given.table_optimizer,
                 "Optimizer of sparse tables: same (as --optimizer), or rowwise-adagrad, with one "
                 "state value per row")
      ->capture_default_str()
      ->one_of({"same", "rowwise-adagrad"})
      ->group(group);
}

void add_objective(Flags& app, RecommenderCommandLine& line, Given& given) {
  const char* group = "Training";
  app.add_option("--objective", given.objective,
                 "What to train: rating predicts ratings, ranking ranks items that a user chose "
                 "before other items")
      ->capture_default_str()
      ->one_of({"rating", "ranking"})
      ->group(group);
  app.add_option("--loss", given.loss, "Loss of --objective ranking: bce or bpr (default: bce)")
      ->one_of({"bce", "bpr"})
      ->group(group);
  app.add_option("--negatives", given.negatives,
                 "With --objective ranking: negative items drawn for each interaction (default: 4; "
                 "with bpr: 1)")
      ->group(group);
  app.add_option("--l2", given.l2,
                 "Weight of the squared norms of the rows that a batch reads, in the loss "
                 "(default: 0.1; for ranking: 0.001)")
      ->group(group);
  app.add_option("--epochs", line.epochs,
                 "Passes over the training interactions, instead of --steps (default: 20)")
      ->group(group);
  app.add_option("--top", given.top,
                 "With --objective ranking: k of hr@k, ndcg@k and recall@k (default: 10)")
      ->group("Evaluation");
  app.add_option("--sampled-items", line.options.sampled,
                 "With --objective ranking: number of drawn items among which a held-out item is "
                 "ranked (papers: 99); 0: all items that the user does not have")
      ->capture_default_str()
      ->group("Evaluation");
}

/// Refuses the flags of ranking, which would have no effect on the prediction of ratings.
void check_prediction(const RecommenderTrainOptions& options, const Given& given) {
  const char* const flag = given.loss             ? "loss"
                           : given.negatives      ? "negatives"
                           : given.top            ? "top"
                           : options.sampled != 0 ? "sampled-items"
                                                  : nullptr;
  if (flag != nullptr) fail_input("--{} is for --objective ranking", flag);
}

[[noreturn]] void refuse_without_evaluation(const char* flag) {
  fail_input(
      "--split none holds nothing out, so there is nothing to evaluate on: leave out {}, or give "
      "another --split",
      flag);
}

void check_ranking(RecommenderTrainOptions& options, const Given& given) {
  using models::RecommenderObjective;
  options.ranks = given.objective == "ranking";
  options.split = given.split.value_or(options.ranks ? "last" : "fold:1/5");
  constexpr int64_t most = 1 << 16;
  if (!options.ranks) {
    check_prediction(options, given);
    options.objective = RecommenderObjective::rating;
    return;
  }
  const bool bpr = given.loss.value_or("bce") == "bpr";
  options.objective = bpr ? RecommenderObjective::bpr : RecommenderObjective::bce;
  options.negatives = given.negatives.value_or(bpr ? 1 : 4);
  at_least("--negatives", options.negatives, 1);
  at_most("--negatives", options.negatives, most);
  at_least("--sampled-items", options.sampled, 0);
  at_most("--sampled-items", options.sampled, most);
  options.top = given.top.value_or(10);
  at_least("--top", options.top, 1);
  at_most("--top", options.top, 1 << 20);
  if (given.top && options.split == "none") refuse_without_evaluation("--top");
  if (options.sampled > 0 && options.split != "last") {
    fail_input("--sampled-items needs one held-out item of each user: --split is {}, expected last",
               options.split);
  }
}

// Checks --split and --columns before the data is read, so that errors name the flags. Messages of
// the parsers begin with the names of these flags, without dashes.
void check_data_flags(const RecommenderTrainOptions& options) {
  if (!options.columns.empty() && options.data.empty()) {
    fail_input("--columns is for --data; ratings that the program draws have no file");
  }
  try {
    data::parse_rating_split(options.split);
    if (!options.columns.empty()) data::parse_rating_columns(options.columns);
  } catch (const InputError& error) {
    fail_input("--{}", error.what());
  }
}

void check_model(RecommenderTrainOptions& options, const Given& given) {
  at_least("--factors", options.model.factors, 1);
  at_most("--factors", options.model.factors, int64_t{1} << 16);
  if (!given.hidden.empty()) {
    if (options.model.name != "neumf") {
      fail_input("--hidden is for --model neumf, not {}", options.model.name);
    }
    options.model.hidden.assign(given.hidden.begin(), given.hidden.end());
  }
  models::RecommenderConfig some = options.model;
  some.users = some.items = 1;  // the data is not open yet
  try {
    some.validate();
  } catch (const InputError& error) {
    fail_input("--hidden: {}", error.what());
  }
}

// Row-sparse embedding tables are the default, unless a flag needs dense ones. --weight-decay is
// documented to act on all rows, and only a dense table updates all rows. With --graph, the
// optimizer refuses row-sparse tables.
void check_tables(RecommenderTrainOptions& options, const RecommenderCommandLine& given) {
  const std::vector<std::string> needing =
      given_flags({{"--weight-decay", options.weight_decay > 0}, {"--graph", options.graph}});
  options.sparse = given.tables.value_or(needing.empty() ? "sparse" : "dense") == "sparse";
  if (!options.sparse) {
    std::vector<std::string> flags = given_flags({{"--tables dense", given.tables == "dense"}});
    std::ranges::copy(needing, std::back_inserter(flags));
    options.dense_flags = fmt::format("{}", fmt::join(flags, " and "));
  }
  options.rowwise = given.table_optimizer == "rowwise-adagrad";
  if (options.sparse && !needing.empty()) {
    fail_input(
        "--tables sparse cannot be combined with {}, which needs dense tables; give --tables dense",
        needing.front());
  }
  if (options.rowwise && !options.sparse) {
    fail_input(
        "--table-optimizer rowwise-adagrad is for sparse tables, but the tables are dense because "
        "of {}",
        options.dense_flags);
  }
}

// The rates were chosen on MovieLens 100K (bench/README.md). With 5e-3, neumf ranks best after half
// of the epochs and then overfits, so neumf has a lower rate for ranking.
float default_learning_rate(const RecommenderTrainOptions& options) {
  if (options.optimizer == "sgd") return 0.1f;
  if (options.optimizer == "adagrad") return 5e-2f;
  return options.ranks && options.model.name == "neumf" ? 3e-3f : 5e-3f;
}

TrainDefaults defaults_for(const RecommenderTrainOptions& options) {
  return {.steps = 0,  // follows from the epochs
          .global_batch = 1024,
          .micro_batch = 256,
          .lr = default_learning_rate(options),
          .min_lr = 0,
          .warmup = 0,
          .beta2 = 0.999f,
          .eval_every = options.steps_per_epoch,
          .bucket_bytes = int64_t{1} << 19,
          .weight_decay = 0};
}

// If no ratings are held out, refuses the flags that need an evaluation. Must be called before
// fill_run, because fill_run would refuse --save-best with bad advice: to give --eval-every, which
// needs held-out ratings too.
void check_held_out(const RecommenderCommandLine& line) {
  if (line.options.split != "none") return;
  const char* const flag = line.given.eval_every.value_or(0) > 0 ? "--eval-every"
                           : line.options.save_best              ? "--save-best"
                           : line.options.eval_only              ? "--eval-only"
                                                                 : nullptr;
  if (flag != nullptr) refuse_without_evaluation(flag);
}

// Returns the help's texts for the defaults that defaults_for and complete choose.
DefaultTexts default_texts() {
  return {.steps = "those of --epochs",
          .global_batch = "1024",
          .micro_batch = "256",
          .lr = "0.005, with --objective ranking and neumf 0.003; with sgd 0.1; with adagrad 0.05",
          .min_lr = "0",
          .warmup = "0",
          .beta2 = "0.999",
          .eval_every = "the steps of an epoch; with --split none 0",
          .bucket_bytes = "512KiB"};
}

}  // namespace

std::string RecommenderTrainOptions::objective_name() const {
  switch (objective) {
    case models::RecommenderObjective::rating:
      return "rating";
    case models::RecommenderObjective::bce:
      return "bce";
    case models::RecommenderObjective::bpr:
      return "bpr";
  }
  fail("there is no objective {}", static_cast<int>(objective));
}

RecommenderCommandLine parse_recommender_command_line(int argc, const char* const* argv) {
  RecommenderCommandLine line;
  RecommenderTrainOptions& options = line.options;
  Given given;
  Flags app(
      "Trains a recommender by collaborative filtering with ZeRO on any number of ranks: "
      "mpirun -n N train_recommender --data ml-100k/u.data",
      "train_recommender");
  app.add_config("Read flags from a file with lines such as epochs = 30");
  add_data(app, options, given);
  add_model(app, options, given);
  add_tables(app, line);
  add_objective(app, line, given);
  add_run_options(
      app, line.given, options,
      {.samples = "Interactions",
       .optimizer = "adam",
       .decay = "Weight decay of matrices, and of all rows of the tables in each step (default: 0)",
       .save = "Write the weights and ids at the end to FILE.safetensors, which recommend reads",
       .init = "Begin with the weights in FILE.safetensors",
       .verify = "Let ranks compare all bytes of the file of --init, instead of samples at 64 "
                 "places; ratings are always compared completely",
       .clip = 0,
       .defaults = default_texts()});
  line.help = app.parse(argc, argv);
  line.settings = app.settings();
  if (!line.help.empty()) return line;
  check_ranking(options, given);
  check_data_flags(options);
  check_model(options, given);
  options.l2 = given.l2.value_or(options.ranks ? 1e-3f : 0.1f);
  within("--l2", options.l2, 0, std::numeric_limits<float>::infinity());
  fill_before_data(line.given, options);
  check_paths(paths_of(options, app.config_file()));
  if (line.epochs && line.given.steps) {
    fail_input("--epochs and --steps are both given, expected one of them");
  }
  if (line.epochs && !(*line.epochs > 0 && *line.epochs <= 1e6)) {
    fail_input("--epochs is {}, expected a number above 0 and at most 1000000", *line.epochs);
  }
  warn_of_repeated_inputs(app);
  return line;
}

void complete(RecommenderCommandLine& line, int64_t interactions) {
  RecommenderTrainOptions& options = line.options;
  TrainDefaults defaults = defaults_for(options);
  if (options.eval_only) {
    line.given.batch = evaluation_batch(line.given.batch, defaults, interactions);
  }
  const Batch batch = batch_sizes(line.given.batch, defaults);
  if (batch.global > interactions) {
    fail_input(
        "a step has {} interactions, but there are only {} to train on; give a smaller --batch",
        batch.global, interactions);
  }
  options.steps_per_epoch = interactions / batch.global;
  const auto per_epoch = static_cast<double>(options.steps_per_epoch);
  defaults.steps = std::max<int64_t>(1, std::llround(line.epochs.value_or(20) * per_epoch));
  defaults.eval_every = options.split == "none" ? 0 : options.steps_per_epoch;
  check_held_out(line);
  fill_run(line.given, defaults, options);
  check_tables(options, line);
  options.epochs = static_cast<double>(options.steps) / per_epoch;
}

}  // namespace tessera::apps
