// Parses and checks the command line of train_recommender. Some defaults depend on the data, so
// `complete` fills them in once the data is open.
//
//   RecommenderCommandLine line = parse_recommender_command_line(argc, argv);
//   RatingData data = open_rating_data(...);
//   complete(line, data.train.size());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/run_options.h"
#include "models/recommender/recommender_loss.h"

namespace tessera::apps {

// If `data` is empty, the program draws its ratings itself (data/ratings/drawn_ratings.h).
struct RecommenderTrainOptions : RunOptions {
  std::string columns;  // fields of a line: "user,item,rating"
  std::string split;
  models::RecommenderConfig model;  // users and items are set from the data later
  bool ranks = false;               // true: rank items; false: predict ratings
  models::RecommenderObjective objective = models::RecommenderObjective::rating;
  bool sparse = true;       // row-sparse embedding tables
  std::string dense_flags;  // flags that make tables dense, such as "--weight-decay and --graph"
  bool rowwise = false;     // tables are updated by row-wise Adagrad
  int64_t negatives = 0;    // negative items drawn for each interaction
  float l2 = 0;
  double epochs = 0;    // length of the run in epochs
  int64_t top = 10;     // k of hr@k, ndcg@k and recall@k
  /// The number of drawn items among which a held-out item is ranked. 0: all items that its user
  /// does not have in training.
  int64_t sampled = 0;

  int64_t steps_per_epoch = 1;

  std::string objective_name() const;  // rating, bce or bpr
};

struct RecommenderCommandLine {
  RecommenderTrainOptions options;
  std::string help;
  dist::Settings settings;  // for ranks to compare
  GivenRun given;
  std::optional<double> epochs;
  std::optional<std::string> tables;  // --tables
  std::string table_optimizer = "same";
};

/// Throws InputError, with a one-line message, if a flag is invalid.
RecommenderCommandLine parse_recommender_command_line(int argc, const char* const* argv);

/// Fills in the defaults for this number of training interactions and checks the options. Throws
/// InputError if an option is invalid or does not fit the data.
void complete(RecommenderCommandLine& line, int64_t interactions);

}  // namespace tessera::apps
