// Recommends items with a model that train_recommender saved:
//
//   recommend model.safetensors --user 196 --top 10 --items u.item
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/recommend_options.h"
#include "core/context.h"
#include "core/text/control_character.h"
#include "core/text/number_text.h"
#include "data/ratings/item_titles.h"
#include "dist/device_choice.h"
#include "models/recommender/recommender_file.h"
#include "nn/weights_file.h"
#include "train/ratings/scoring.h"

namespace tessera::apps {
namespace {

int32_t number_of(const std::vector<std::string>& ids, const std::string& id,
                  const std::string& model) {
  const auto found = std::find(ids.begin(), ids.end(), id);
  if (found == ids.end()) {
    fail_input("{}: the model has no user {}", model, models::printable_id(id));
  }
  return static_cast<int32_t>(found - ids.begin());
}

/// Returns the options.top items with the highest scores, the highest score first. Items are given
/// by their indices in `scores`. Among items with equal scores, the lower index comes first. Unless
/// options.all is set, leaves out the items in the user's history.
std::vector<int32_t> best_items(std::span<const float> scores, const data::Histories& histories,
                                int32_t user, const RecommendOptions& options) {
  std::vector<int32_t> items;
  for (int32_t item = 0; item < std::ssize(scores); ++item) {
    const float score = scores[static_cast<size_t>(item)];
    if (!std::isfinite(score)) {
      fail("{}: the model gives an item the score {}, expected a finite number", options.model,
           without_nan_sign(score));
    }
    if (options.all || !histories.has(user, item)) items.push_back(item);
  }
  const auto count = std::min(items.size(), static_cast<size_t>(options.top));
  std::partial_sort(items.begin(), items.begin() + static_cast<int64_t>(count), items.end(),
                    [&](int32_t a, int32_t b) {
                      const float left = scores[static_cast<size_t>(a)];
                      const float right = scores[static_cast<size_t>(b)];
                      return left != right ? left > right : a < b;
                    });
  items.resize(count);
  return items;
}

// Prints the best items of each user. Reports a user who is not in the model, and goes on with the
// next user. Returns the exit code: 2 if there was such a user, else 0.
int recommend(const RecommendOptions& options) {
  check_not_a_checkpoint(options.model, "give the file that --save of its run wrote");
  dist::choose_device(options.device);
  set_thread_count(dist::threads_per_rank(options.threads, 1));
  models::RecommenderFile file = models::read_recommender_file(options.model);
  std::map<std::string, std::string> titles;
  if (!options.items.empty()) titles = data::read_item_titles(options.items);
  const data::Histories histories(std::move(file.history), std::move(file.history_begins),
                                  file.config.items, options.model);
  const auto model = models::recommender(file.config);
  nn::WeightsFile(options.model, *model, models::recommender_tensor_names()).load(*model);
  model->eval();
  train::Scorer scorer(*model, histories,
                       train::ranking_evaluation_sizes(file.config, histories, 1));
  int result = 0;
  for (const std::string& id : options.users) {
    int32_t user = 0;
    try {
      user = number_of(file.user_ids, id, options.model);
    } catch (const InputError& error) {
      print_error(error);
      result = 2;
      continue;
    }
    const std::span<const float> scores = scorer.catalogue(std::span(&user, 1));
    fmt::print("user {}\n", with_escaped_controls(id));
    const std::vector<int32_t> items = best_items(scores, histories, user, options);
    if (items.empty()) {
      fmt::print(
          "            nothing is left to recommend: the user has all {} in the training "
          "data; --all recommends these too\n",
          counted(std::ssize(scores), "item"));
    }
    for (const int32_t item : items) {
      float score = scores[static_cast<size_t>(item)];
      if (file.objective == "rating") score = std::clamp(score, file.lowest, file.highest);
      const std::string& item_id = file.item_ids[static_cast<size_t>(item)];
      const auto title = titles.find(item_id);
      fmt::print("{:10.4f}  {}{}\n", score, with_escaped_controls(item_id),
                 title == titles.end() ? "" : "  " + with_escaped_controls(title->second));
    }
  }
  return result;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  return apps::run_tool([&] {
    const auto [options, help] = apps::parse_recommend_command_line(argc, argv);
    if (help.empty()) return apps::recommend(options);
    fmt::print("{}", help);
    return 0;
  });
}
