// Models of collaborative filtering. They predict how much a user likes an item, from the ratings
// of all users.
//
//   mf      biased matrix factorization (Koren, Bell and Volinsky, "Matrix factorization techniques
//           for recommender systems", Computer 2009)
//   svd++   mf, but a user's factors also include the sum of factors of the items that the user has
//           rated (Koren, "Factorization meets the neighborhood", KDD 2008)
//   gmf     a weighted product of factors (He et al., "Neural collaborative filtering", WWW 2017)
//   neumf   gmf combined with an MLP, which has its own factors (also He et al.)
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
  /// neumf: widths of the MLP. The first width is the size of the MLP's input: the concatenated
  /// user and item factors. Each further width is the size of a layer's output.
  std::vector<int64_t> hidden = {64, 32, 16};
  /// For each kind of embedding table, the largest number of distinct rows that a micro-batch looks
  /// up. The number is at most the number of rows of such a table. The tables of this kind are
  /// row-sparse, or dense if the number is 0.
  struct Distinct {
    int64_t users = 0;
    int64_t items = 0;
    int64_t history = 0;  // svd++: rows of the table of history factors
  };
  Distinct distinct = {};
  float mean = 0;  // mf, svd++: added to every score; the mean of all ratings
  /// True if RecommenderInput needs histories.
  bool reads_histories() const { return name == "svd++"; }
  /// Throws InputError for an unknown name, with a list of the known names, and for sizes and
  /// numbers of distinct rows out of range.
  void validate() const;
};
std::vector<std::string> recommender_names();

/// B users, and K items for each user, or the same K items for all users (mf and svd++: only if no
/// gradient is recorded).
struct RecommenderInput {
  Tensor users;  // i32 (B)
  Tensor items;  // i32 (B, K) or (1, K)
  /// Each user's items in training, in the layout of ops::embedding_bag. Needed only if the config
  /// reads histories.
  Tensor history = {};          // i32
  Tensor history_offsets = {};  // i32 (B + 1)
  Tensor history_scale = {};    // f32 (B): 1 / sqrt(n), where the user has n items; 0 if n is 0
  bool penalized = false;       // true: Scores has the data for an L2 penalty
};

/// The L2 penalty of recommender_loss is proportional to (the sum of the squares of `rows`) +
/// `squares`.
struct Scores {
  Tensor scores;  // (B, K): ratings or logits
  /// The penalized rows that ops::row_products does not read, copied out of their tables.
  std::vector<Tensor> rows;
  /// f32 []: the sum of the squares of all rows and biases that ops::row_products reads. Undefined
  /// if `penalized` is false, or if the model does not call row_products.
  Tensor squares = {};
  bool penalized = false;  // copied from RecommenderInput
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

/// Builds the model. Throws as validate does.
std::unique_ptr<Recommender> recommender(const RecommenderConfig& config);

/// A table with a row for each user or item. The row's index is the number of the user or item. In
/// each step an optimizer updates all rows of a dense table, and sends all of them if there are
/// several processes. For a row-sparse table, the optimizer by default updates and sends only the
/// rows that were looked up (ZeroOptions::update_all_rows).
using RecommenderTable = nn::Embedding;

/// Returns the options of a row-sparse table, of which a micro-batch looks up at most `distinct`
/// different rows. If `distinct` is 0, the table is dense.
nn::Embedding::Options table_options(const nn::Initializer& initializer, int64_t distinct);

}  // namespace tessera::models
