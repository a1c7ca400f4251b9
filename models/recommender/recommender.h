// Models of collaborative filtering: how much a user likes an item, from which users like which.
//
//   mf      biased matrix factorization (Koren, Bell and Volinsky, "Matrix factorization techniques
//           for recommender systems", Computer 2009)
//   svd++   the same, and a user is also the sum of what the user has rated (Koren, "Factorization
//           meets the neighborhood", KDD 2008)
//   gmf     a weighted product of factors; neumf: beside an MLP of other factors (He et al.,
//           "Neural collaborative filtering", WWW 2017)
//
//   auto model = models::recommender({.name = "mf", .users = 943, .items = 1682});
//   const Tensor scores = model->score({.users = users, .items = items}).scores;
//
// Letters: U users, I items, B samples of K items each, F factors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "nn/layers.h"
#include "nn/module.h"

namespace tessera::models {

struct RecommenderConfig {
  std::string name = "mf";
  int64_t users = 0;
  int64_t items = 0;
  int64_t factors = 64;
  /// neumf: widths of the MLP: both factors side by side, and what each layer gives.
  std::vector<int64_t> hidden = {64, 32, 16};
  float mean = 0;  // mf, svd++: what every score begins with, the mean of all ratings
  /// Whether RecommenderInput needs histories.
  bool reads_histories() const { return name == "svd++"; }
  /// Throws InputError, naming what there is.
  void validate() const;
};
std::vector<std::string> recommender_names();

/// B users, and K items for each of them, or the same K items for all.
struct RecommenderInput {
  Tensor users;  // i32 (B)
  Tensor items;  // i32 (B, K) or (1, K)
  /// Where the config reads histories, as embedding_bag takes them: a user's items in training.
  Tensor history = {};          // i32
  Tensor history_offsets = {};  // i32 (B + 1)
  Tensor history_scale = {};    // f32 (B): 1 / sqrt(items of the user)
  bool penalized = false;       // whether Scores has all that a penalty is of
};

struct Scores {
  Tensor scores;  // (B, K): a rating, or a logit
  /// A penalty is of the squares of all rows of tables that were read: of these, and, where the
  /// input asked for it, of those of which no copy was made the sum, f32 [].
  std::vector<Tensor> rows;
  Tensor squares = {};
  bool penalized = false;  // as the input was
};

class Recommender : public nn::Module {
 public:
  virtual Scores score(const RecommenderInput& input) = 0;
  const RecommenderConfig& config() const { return config_; }

 protected:
  explicit Recommender(const RecommenderConfig& config);

 private:
  RecommenderConfig config_;
};

/// Throws as validate does.
std::unique_ptr<Recommender> recommender(const RecommenderConfig& config);

/// What users and items are kept in, by number. The gradient of such a table is dense: all of its
/// rows are sent and updated in each step.
using RecommenderTable = nn::Embedding;

}  // namespace tessera::models
