// Compares the scores and losses of the recommenders with their formulas, which are computed in f64
// for one pair of user and item at a time. Also tests gradients, files and error messages.
#include "models/recommender/recommender.h"

#include <cmath>
#include <functional>
#include <map>

#include "core/autograd.h"
#include "core/ops.h"
#include "models/recommender/recommender_file.h"
#include "models/recommender/recommender_loss.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using models::Recommender;
using models::RecommenderConfig;
using models::RecommenderInput;

RecommenderConfig small(const std::string& name) {
  return {.name = name,
          .users = 5,
          .items = 7,
          .factors = 3,
          .hidden = {4, 6, 2},
          .mean = name == "mf" || name == "svd++" ? 3.5f : 0.0f};
}

Tensor indices(const Shape& shape, const std::vector<int32_t>& values) {
  const Tensor result = Tensor::empty(shape, DType::i32);
  std::copy(values.begin(), values.end(), result.values<int32_t>().begin());
  return result;
}

/// Returns an input with two users and three items for each. The second user has no history.
RecommenderInput example() {
  return {.users = indices({2}, {4, 1}),
          .items = indices({2, 3}, {0, 6, 2, 2, 3, 5}),
          .history = indices({4}, {1, 3, 6, 0}),
          .history_offsets = indices({3}, {0, 3, 3}),
          .history_scale = Tensor::from({2}, std::vector<float>{1 / std::sqrt(3.0f), 0.0f})};
}

std::unique_ptr<Recommender> built(const RecommenderConfig& config) {
  auto model = models::recommender(config);
  nn::materialize(*model, default_device(), 7);
  // Replaces all initial values by random ones, because biases begin as zeros, and zeros would hide
  // a wrong use of biases.
  uint64_t seed = 1;
  for (const nn::NamedParameter& named : model->named_parameters()) {
    const Tensor& tensor = named.parameter.tensor();
    tensor.copy_from(random_tensor(tensor.shape(), seed++));
  }
  return model;
}

/// The weights of a model as rows of f64.
class Weights {
 public:
  explicit Weights(const Recommender& model) {
    for (const nn::NamedParameter& named : model.named_parameters()) {
      const Tensor& tensor = named.parameter.tensor();
      const auto width = static_cast<size_t>(tensor.size(-1));
      const std::vector<double> all = doubles(tensor);
      auto& rows = rows_[named.name];
      for (size_t at = 0; at < all.size(); at += width) {
        rows.emplace_back(all.begin() + static_cast<int64_t>(at),
                          all.begin() + static_cast<int64_t>(at + width));
      }
    }
  }
  const std::vector<double>& row(const std::string& name, int32_t index) const {
    return rows_.at(name).at(static_cast<size_t>(index));
  }
  std::vector<double> linear(const std::string& name, const std::vector<double>& x) const {
    std::vector<double> y;
    for (const std::vector<double>& weights : rows_.at(name + ".weight")) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += weights.at(i) * x[i];
      y.push_back(sum);
    }
    const auto bias = rows_.find(name + ".bias");
    for (size_t i = 0; bias != rows_.end() && i < y.size(); ++i) y[i] += bias->second.at(0).at(i);
    return y;
  }

 private:
  std::map<std::string, std::vector<std::vector<double>>> rows_;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(a[i] * b[i]);
  return result;
}

double factorized(const Weights& w, const std::vector<double>& p, int32_t user, int32_t item) {
  return 3.5 + w.row("user_bias.weight", user)[0] + w.row("item_bias.weight", item)[0] +
         dot(p, w.row("item_factors.weight", item));
}

/// Returns the factors p_u of a user. svd++ adds the factors of the items in the user's history,
/// divided by the root of the number of these items. In example(), only user 4 has a history.
std::vector<double> user_row(const std::string& name, const Weights& w, int32_t user) {
  std::vector<double> p = w.row("user_factors.weight", user);
  if (name != "svd++" || user != 4) return p;
  for (const int32_t liked : {1, 3, 6}) {
    const std::vector<double>& y = w.row("history_factors.weight", liked);
    for (size_t f = 0; f < p.size(); ++f) p[f] += y[f] / std::sqrt(3.0);
  }
  return p;
}

double neural(const Weights& w, int32_t user, int32_t item) {
  std::vector<double> of_user = w.linear("mlp.0.user", w.row("mlp_user_factors.weight", user));
  std::vector<double> x = w.linear("mlp.0.item", w.row("mlp_item_factors.weight", item));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::max(0.0, x[i] + of_user[i]);
  x = w.linear("mlp.1", x);
  std::vector<double> all =
      product(w.row("user_factors.weight", user), w.row("item_factors.weight", item));
  for (const double value : x) all.push_back(std::max(0.0, value));
  return w.linear("output", all)[0];
}

double expected_score(const std::string& name, const Weights& w, int32_t user, int32_t item) {
  if (name == "mf" || name == "svd++") {
    return factorized(w, user_row(name, w, user), user, item);
  }
  if (name == "neumf") return neural(w, user, item);
  return w.linear(
      "output", product(w.row("user_factors.weight", user), w.row("item_factors.weight", item)))[0];
}

TEST_CASE("recommenders compute their formulas, for each user's items and for shared items") {
  const std::string name = GENERATE(from_range(models::recommender_names()));
  CAPTURE(name);
  const auto model = built(small(name));
  const Weights weights(*model);
  RecommenderInput input = example();
  const NoGrad no_grad;
  std::vector<double> expected;
  for (int i = 0; i < 6; ++i) {
    expected.push_back(expected_score(name, weights, input.users.values<int32_t>()[i / 3],
                                      input.items.values<int32_t>()[i]));
  }
  const Tensor scores = model->score(input).scores;
  CHECK(scores.shape() == Shape{2, 3});
  CHECK(max_error(scores, expected) < 1e-5);

  input.items = indices({1, 2}, {6, 1});
  expected.clear();
  for (int i = 0; i < 4; ++i) {
    expected.push_back(expected_score(name, weights, input.users.values<int32_t>()[i / 2],
                                      input.items.values<int32_t>()[i % 2]));
  }
  const Tensor shared = model->score(input).scores;
  CHECK(shared.shape() == Shape{2, 2});
  CHECK(max_error(shared, expected) < 1e-5);
}

/// Compares the gradients with central differences of the f32 loss, for some elements of each
/// parameter.
void check_gradients(Recommender& model, const std::function<Tensor()>& loss) {
  backward(loss());
  for (const nn::NamedParameter& named : model.named_parameters()) {
    const std::vector<double> gradient = doubles(named.parameter.gradient());
    const auto values = named.parameter.tensor().values<float>();
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 8) {
      const NoGrad no_grad;
      const float before = values[i];
      constexpr float step = 4e-3f;
      values[i] = before + step;
      const double above = loss().item();
      values[i] = before - step;
      const double below = loss().item();
      values[i] = before;
      CAPTURE(named.name, i, gradient[i]);
      CHECK(std::abs((above - below) / (2 * step) - gradient[i]) < 2e-3);
    }
  }
}

/// Returns the sum of squares in the L2 penalty of `input`. The sum includes the looked-up rows and
/// biases, once per lookup. For svd++, a user's row is p_u, which includes the history. The
/// history's rows are not added separately.
double read_squares(const std::string& name, const Weights& w, const models::Scores& scores,
                    const RecommenderInput& input) {
  double sum = 0;
  const auto add = [&sum](const std::vector<double>& row) { sum += dot(row, row); };
  if (name != "mf" && name != "svd++") {
    for (const Tensor& rows : scores.rows) add(doubles(rows));
    return sum;
  }
  for (const int32_t user : input.users.values<int32_t>()) {
    add(user_row(name, w, user));
    add(w.row("user_bias.weight", user));
  }
  for (const int32_t item : input.items.values<int32_t>()) {
    add(w.row("item_factors.weight", item));
    add(w.row("item_bias.weight", item));
  }
  return sum;
}

TEST_CASE("objectives are means over samples, plus a penalty on the rows that were read") {
  using models::RecommenderObjective;
  const std::string name = GENERATE(from_range(models::recommender_names()));
  const auto objective =
      GENERATE(RecommenderObjective::rating, RecommenderObjective::bce, RecommenderObjective::bpr);
  CAPTURE(name, static_cast<int>(objective));
  const auto model = built(small(name));
  RecommenderInput input = example();
  input.penalized = true;
  const Tensor targets = Tensor::from({2, 3}, std::vector<float>{1, 0, 0, 1, 0, 0});
  const float l2 = 0.25f;
  double expected = 0;
  {
    const NoGrad no_grad;
    const models::Scores scores = model->score(input);
    const std::vector<double> x = doubles(scores.scores);
    const std::vector<double> t = doubles(targets);
    for (size_t i = 0; i < 6; ++i) {
      const double one = i % 3 == 0 ? 0 : std::log1p(std::exp(x[i] - x[i / 3 * 3])) / 4;
      if (objective == RecommenderObjective::rating) expected += (x[i] - t[i]) * (x[i] - t[i]) / 6;
      if (objective == RecommenderObjective::bce) {
        expected += (std::log1p(std::exp(x[i])) - t[i] * x[i]) / 6;
      }
      if (objective == RecommenderObjective::bpr) expected += one;
    }
    expected += read_squares(name, Weights(*model), scores, input) * l2 / 2;
    CHECK(scores.squares.defined() == (name == "mf" || name == "svd++"));
  }
  const auto loss = [&] {
    return models::recommender_loss(model->score(input), targets, objective, l2);
  };
  CHECK(loss().item() == Approx(expected).epsilon(1e-5));
  CHECK_THROWS_WITH(models::recommender_loss(model->score(example()), targets, objective, l2),
                    ContainsSubstring("not penalized"));
  const Tensor wide = Tensor::zeros({3, 1, 1}).to(targets.device());
  const auto other = [&] { models::recommender_loss(model->score(input), wide, objective, l2); };
  if (objective == RecommenderObjective::bpr) {
    CHECK_NOTHROW(other());
  } else {
    CHECK_THROWS_WITH(other(), ContainsSubstring("targets have shape [3, 1, 1], expected [2, 3]"));
  }
  check_gradients(*model, loss);
}

TEST_CASE("invalid configurations of recommenders are refused") {
  const auto message = [](RecommenderConfig config) {
    try {
      config.validate();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(small("svd++")).empty());
  CHECK(message({.name = "als", .users = 1, .items = 1}) ==
        "there is no model \"als\", expected one of mf, svd++, gmf, neumf");
  CHECK_THAT(message({.users = 0, .items = 1}), ContainsSubstring("0 users and 1 items"));
  CHECK_THAT(message({.users = 1, .items = 1, .factors = 0}), ContainsSubstring("0 factors"));
  CHECK_THAT(message({.name = "neumf", .users = 1, .items = 1, .hidden = {3, 2}}),
             ContainsSubstring("widths 3, 2"));

  RecommenderConfig sparse = small("svd++");
  sparse.distinct = {.users = 5, .items = 7, .history = 7};
  CHECK(message(sparse).empty());
  sparse.distinct.history = 8;
  CHECK(message(sparse) ==
        "distinct.history is 8, expected from 0 to 7, the number of rows of such a table");
  sparse.distinct.items = -1;
  CHECK_THAT(message(sparse), ContainsSubstring("distinct.items is -1, expected from 0 to 7"));
  sparse.distinct.users = 6;
  CHECK_THAT(message(sparse), ContainsSubstring("distinct.users is 6, expected from 0 to 5"));
}

TEST_CASE("a recommender's file has weights, ids and histories, and must not lack any") {
  const TemporaryFolder folder;
  const auto model = built(small("svd++"));
  const models::RecommenderFile file{.config = model->config(),
                                     .objective = "rating",
                                     .lowest = 1,
                                     .highest = 5,
                                     .user_ids = {"a", "b", "", "d e", "\xc3\xa9"},
                                     .item_ids = {"1", "2", "3", "4", "5", "6", "7"},
                                     .history = {0, 3, 6},
                                     .history_begins = {0, 2, 2, 3, 3, 3}};
  const std::string path = folder.path("m.safetensors");
  const auto write = [&](const std::vector<nn::NamedTensor>& others) {
    nn::WeightsWriter writer(path, *model, models::recommender_metadata(file), others);
    for (const nn::NamedParameter& named : model->named_parameters()) {
      writer.write(named, named.parameter.tensor().to_host().values<float>());
    }
    writer.commit(*model, 0);
  };
  write(models::recommender_tensors(file));
  const models::RecommenderFile again = models::read_recommender_file(path);
  CHECK(again.config.name == "svd++");
  CHECK(again.config.mean == 3.5f);
  CHECK(again.config.hidden == file.config.hidden);
  CHECK(again.user_ids == file.user_ids);
  CHECK(again.item_ids == file.item_ids);
  CHECK(again.history == file.history);
  CHECK(again.history_begins == file.history_begins);
  CHECK(again.highest == 5);
  const auto other = models::recommender(again.config);
  nn::WeightsFile(path, *other, models::recommender_tensor_names()).load(*other);
  const NoGrad no_grad;
  CHECK(same_bits(model->score(example()).scores, other->score(example()).scores));
  CHECK_THROWS_WITH(nn::WeightsFile(path, *other), ContainsSubstring("is unknown"));
  CHECK(models::read_digest_of_ids(nn::SafetensorsReader(path), file.config) ==
        models::digest_of_ids(file.user_ids, file.item_ids));
  models::RecommenderConfig config = model->config();
  CHECK_NOTHROW(models::check_same_sizes(path, config));
  config.factors = 8;
  config.users = 6;
  CHECK_THROWS_WITH(models::check_same_sizes(path, config),
                    ContainsSubstring(": the weights are of svd++ with 3 factors, 5 users and 7 "
                                      "items; expected those of this run's model and data, svd++ "
                                      "with 8 factors, 6 users and 7 items"));
  CHECK(models::digest_of_ids({"a"}, {"b"}) != models::digest_of_ids({"a", "b"}, {}));

  std::vector<nn::NamedTensor> others = models::recommender_tensors(file);
  others.erase(others.begin());
  write(others);
  CHECK_THROWS_WITH(models::read_recommender_file(path), ContainsSubstring("ids.users"));
  CHECK(models::read_digest_of_ids(nn::SafetensorsReader(path), file.config) == std::nullopt);
}

TEST_CASE("invalid descriptions of recommenders are refused, with the file's name") {
  const TemporaryFolder folder;
  const std::string path = folder.path("m.safetensors");
  const models::RecommenderFile file{.config = small("neumf"), .objective = "bpr"};
  const auto refusal = [&](const std::string& part, const std::string& other) {
    nn::SafetensorsMetadata metadata = models::recommender_metadata(file);
    for (auto& [key, text] : metadata) {
      if (const size_t at = text.find(part); at != std::string::npos) {
        text.replace(at, part.size(), other);
      }
    }
    nn::write_safetensors(path, {{"a", Tensor::zeros({1})}}, metadata);
    const std::string text = message_of<InputError>([&] { models::read_recommender_file(path); });
    CHECK_THAT(text, ContainsSubstring(path));
    return text;
  };
  CHECK_THAT(refusal("\"bpr\"", "\"ranks\""), ContainsSubstring("no objective \"ranks\""));
  CHECK_THAT(refusal("[4,6,2]", "[4,6.5,2]"), ContainsSubstring("hidden"));
  CHECK_THAT(refusal("[4,6,2]", "[4,1e300,2]"), ContainsSubstring("hidden"));
  CHECK_THAT(refusal("[4,6,2]", "{\"a\":4,\"b\":2}"),
             ContainsSubstring("expected a list of widths"));
  CHECK_THAT(refusal("[4,6,2]", "4"), ContainsSubstring("expected a list of widths"));
  CHECK_THAT(refusal("\"users\":5", "\"users\":0"), ContainsSubstring("0 users"));
  CHECK_THAT(refusal("\"lowest\":0.0", "\"lowest\":1.0"), ContainsSubstring("ratings from 1 to 0"));
}

}  // namespace
}  // namespace tessera::test
