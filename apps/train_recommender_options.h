// The command line of train_recommender. What was not given depends on the data, too, so it is
// completed when that is open.
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

struct RecommenderTrainOptions : RunOptions {  // without data: ratings that the program draws
  std::string columns;                         // of a text
  std::string split;
  models::RecommenderConfig model;  // without numbers of users and items
  bool ranks = false;               // interactions are ranked, rather than ratings predicted
  models::RecommenderObjective objective = models::RecommenderObjective::rating;
  int64_t negatives = 0;  // drawn for each interaction
  float l2 = 0;
  double epochs = 0;    // as many as the steps are
  int64_t top = 10;     // k of hr@k, ndcg@k and recall@k
  int64_t sampled = 0;  // items that a held-out one is ranked among; 0: all

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

/// Throws InputError, one line, for what cannot be done as asked.
RecommenderCommandLine parse_recommender_command_line(int argc, const char* const* argv);

/// Completes the options with the defaults for so many interactions to train on. Throws InputError.
void complete(RecommenderCommandLine& line, int64_t interactions);

}  // namespace tessera::apps
