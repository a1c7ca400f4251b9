#include "models/recommender/recommender.h"

#include <algorithm>

#include "core/error.h"
#include "models/recommender/matrix_factorization.h"
#include "models/recommender/neural_filtering.h"

namespace tessera::models {
namespace {

void check_distinct(const char* tables, int64_t distinct, int64_t rows) {
  if (0 <= distinct && distinct <= rows) return;
  fail_input("distinct.{} is {}, expected from 0 to {}, the number of rows of such a table", tables,
             distinct, rows);
}

}  // namespace

std::vector<std::string> recommender_names() { return {"mf", "svd++", "gmf", "neumf"}; }

void RecommenderConfig::validate() const {
  const std::vector<std::string> names = recommender_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    fail_input("there is no model \"{}\", expected one of {}", name, fmt::join(names, ", "));
  }
  constexpr int64_t most_rows = int64_t{1} << 31;
  if (users < 1 || items < 1 || users >= most_rows || items >= most_rows) {
    fail_input("a model of {} users and {} items, expected from 1 to 2^31 - 1 of each", users,
               items);
  }
  check_distinct("users", distinct.users, users);
  check_distinct("items", distinct.items, items);
  check_distinct("history", distinct.history, items);
  constexpr int64_t widest = int64_t{1} << 16;
  if (factors < 1 || factors > widest) {
    fail_input("a model of {} factors, expected from 1 to {}", factors, widest);
  }
  if (name != "neumf") return;
  const bool fits = hidden.size() >= 2 && hidden.size() <= 16 && hidden[0] % 2 == 0 &&
                    std::all_of(hidden.begin(), hidden.end(),
                                [](int64_t width) { return width >= 1 && width <= widest; });
  if (fits) return;
  fail_input(
      "an MLP of widths {}: expected 2 to 16 widths, each from 1 to {}, and the first one "
      "even",
      fmt::join(hidden, ", "), widest);
}

Recommender::Recommender(const RecommenderConfig& config) : config_(config) { config_.validate(); }

nn::Embedding::Options table_options(const nn::Initializer& initializer, int64_t distinct) {
  return {.initializer = initializer, .sparse = distinct > 0, .distinct = distinct};
}

std::unique_ptr<Recommender> recommender(const RecommenderConfig& config) {
  config.validate();
  if (config.name == "gmf") return std::make_unique<GeneralizedFactorization>(config);
  if (config.name == "neumf") return std::make_unique<NeuralFactorization>(config);
  return std::make_unique<MatrixFactorization>(config);
}

}  // namespace tessera::models
