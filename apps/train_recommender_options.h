// Parses and checks the command line of train_recommender. Some defaults depend on the data, so the
// options are completed once it is open.
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

struct RecommenderTrainOptions : RunOptions {  // data empty: ratings that the program draws
  std::string columns;                         // fields of a line: "user,item,rating"
  std::string split;
  models::RecommenderConfig model;  // its numbers of users and items are not set
  bool ranks = false;               // rank items, rather than predict ratings
  models::RecommenderObjective objective = models::RecommenderObjective::rating;
  int64_t negatives = 0;  // drawn for each interaction
  float l2 = 0;
  double epochs = 0;    // the number of steps, in epochs
  int64_t top = 10;     // k of hr@k, ndcg@k and recall@k
  int64_t sampled = 0;  // items among which a held-out one is ranked; 0: all

  int64_t steps_per_epoch = 1;

  std::string objective_name() const;  // rating, bce or bpr
};

struct RecommenderCommandLine {
  RecommenderTrainOptions options;
  std::string help;
  dist::Settings settings;  // for ranks to compare
  GivenRun given;
  std::optional<double> epochs;
};

/// Throws InputError, with a one-line message, if a flag is invalid.
RecommenderCommandLine parse_recommender_command_line(int argc, const char* const* argv);

/// Completes the options with the defaults for this number of training interactions. Throws
/// InputError.
void complete(RecommenderCommandLine& line, int64_t interactions);

}  // namespace tessera::apps
