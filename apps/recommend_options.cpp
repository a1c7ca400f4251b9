#include "apps/recommend_options.h"

#include "apps/cli/command_line.h"
#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "core/error.h"

namespace tessera::apps {

RecommendCommandLine parse_recommend_command_line(int argc, const char* const* argv) {
  RecommendCommandLine result;
  RecommendOptions& options = result.options;
  int64_t threads = 0;
  Flags app("Recommends items with a model that train_recommender saved", "recommend");
  app.add_option("model,--model", options.model,
                 "Weights, FILE.safetensors, that train_recommender --save wrote");
  app.add_option("users,--user", options.users,
                 "Ids of users to recommend items to, as in the training data");
  app.add_option("--top", options.top, "How many items to recommend to each user")
      ->capture_default_str();
  app.add_option(
      "--items", options.items,
      "Print the items' titles from FILE: u.item, movies.dat, movies.csv or RecBole's .item");
  app.add_flag("--all", options.all, "Also recommend items that the user has in the training data");
  add_device_option(app, options.device);
  app.add_option("--threads", threads,
                 "CPU threads; 0: OMP_NUM_THREADS, else all cores (default: 0)");
  result.help = app.parse(argc, argv);
  if (!result.help.empty()) return result;
  if (options.model.empty() || options.users.empty()) {
    fail_input("a model and users are required: recommend FILE.safetensors --user ID");
  }
  at_least("--top", options.top, 1);
  at_least("--threads", threads, 0);
  at_most("--threads", threads, 4096);
  options.threads = static_cast<int>(threads);
  return result;
}

}  // namespace tessera::apps
