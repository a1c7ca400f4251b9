// Tests cross_entropy with class weights and an ignored target value.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/cross_entropy_reference.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Reference {
  double loss = 0;
  Values dlogits;  // for a loss with gradient `dloss`

  Reference(const Values& logits, const Tensor& targets, const Values& class_weights,
            std::optional<int32_t> ignored, double dloss)
      : dlogits(logits.size()) {
    const auto target = targets.values<int32_t>();
    const size_t columns = logits.size() / target.size();
    Values weights;
    double total = 0;
    for (const int32_t t : target) {
      const double weight = class_weights.empty() ? 1 : t < 0 ? 0 : class_weights[size_t(t)];
      weights.push_back(t == ignored ? 0 : weight);
      total += weights.back();
    }
    for (size_t row = 0; row < target.size(); ++row) {
      if (weights[row] == 0) continue;
      const double* in = logits.data() + row * columns;
      double sum = 0;
      for (size_t i = 0; i < columns; ++i) sum += std::exp(in[i]);
      const auto hit = static_cast<size_t>(target[row]);
      loss += weights[row] / total * (std::log(sum) - in[hit]);
      for (size_t i = 0; i < columns; ++i) {
        const double p = std::exp(in[i]) / sum - (i == hit ? 1 : 0);
        dlogits[row * columns + i] = p * weights[row] / total * dloss;
      }
    }
  }
};

/// Returns random targets, with every third target set to `ignored`.
Tensor targets_with(int32_t ignored, int64_t rows, int64_t vocabulary) {
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  for (int64_t row = 0; row < rows; row += 3) targets.data<int32_t>()[row] = ignored;
  return targets;
}

TEST_CASE("weighted cross_entropy and its gradient equal float64", "[weighted_cross_entropy]") {
  const auto [rows, vocabulary] = GENERATE(table<int64_t, int64_t>({{2, 1}, {33, 65}, {8, 3001}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool weighted = GENERATE(true, false);
  const auto ignored = GENERATE(values<std::optional<int32_t>>({std::nullopt, -100, 0}));
  if (!weighted && !ignored) return;
  if (vocabulary == 1 && ignored == 0) return;  // all rows would be ignored
  CAPTURE(rows, vocabulary, dtype_name(dtype), weighted, ignored.value_or(-1));
  const Tensor logits = as_parameter(random_tensor_of(dtype, {rows, vocabulary}, 1, -4, 4));
  const Tensor weights = weighted ? random_tensor({vocabulary}, 3, 0.1f, 2) : Tensor();
  const Tensor targets =
      ignored ? targets_with(*ignored, rows, vocabulary) : random_indices({rows}, 2, vocabulary);
  const Tensor loss =
      ops::cross_entropy(logits, targets, {.class_weights = weights, .ignored = ignored});
  REQUIRE(loss.shape() == Shape{});
  REQUIRE(loss.dtype() == DType::f32);
  backward(loss, 3);
  const Reference expected(values_of(logits), targets, weighted ? values_of(weights) : Values{},
                           ignored, 3);
  CHECK(double{loss.item()} == Approx(expected.loss).epsilon(1e-5).margin(1e-6));
  CHECK(relative_error(logits.leaf()->gradient, expected.dlogits) <= tolerance(dtype, 1, 2e-5));
}

TEST_CASE("weighted cross_entropy is as precise for large logits as for small ones",
          "[weighted_cross_entropy]") {
  const int64_t rows = 8, vocabulary = GENERATE(7, 1500);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor targets = targets_with(-1, rows, vocabulary);
  const Tensor weights = random_tensor({vocabulary}, 3, 0.1f, 2);
  const auto run = [&](float shift) {
    const Tensor logits = as_parameter(integer_logits(dtype, {rows, vocabulary}, shift));
    const Tensor loss =
        ops::cross_entropy(logits, targets, {.class_weights = weights, .ignored = -1});
    backward(loss);
    return std::vector{loss.detach(), logits.leaf()->gradient};
  };
  // The sums of logits and shift are exact, so the shift may not change a bit of the results.
  const auto small = run(0), large = run(large_shift(dtype));
  for (size_t i = 0; i < small.size(); ++i) CHECK(same_bits(large[i], small[i]));
}

TEST_CASE("cross_entropy with default options has the bits of cross_entropy without any",
          "[weighted_cross_entropy]") {
  const Tensor targets = random_indices({33}, 2, 65);
  const auto run = [&](auto&&... options) {
    const Tensor logits = as_parameter(random_tensor({33, 65}, 1));
    const Tensor loss = ops::cross_entropy(logits, targets, options...);
    backward(loss);
    return std::pair(loss.detach(), logits.leaf()->gradient);
  };
  const auto [loss, gradient] = run();
  const auto [same_loss, same_gradient] = run(ops::CrossEntropyOptions{});
  CHECK(same_bits(loss, same_loss));
  CHECK(same_bits(gradient, same_gradient));
}

TEST_CASE("rows of weight zero contribute nothing, even if their logits are not finite",
          "[weighted_cross_entropy]") {
  const float odd = GENERATE(std::nanf(""), infinity, -infinity);
  const Tensor logits = random_tensor({3, 4}, 1);
  for (int64_t i = 4; i < 8; ++i) logits.data<float>()[i] = i % 2 == 0 ? odd : 1;
  const Tensor targets = Tensor::from<int32_t>({3}, {1, -1, 3});
  const Tensor parameter = as_parameter(logits);
  const Tensor loss = ops::cross_entropy(parameter, targets, {.ignored = -1});
  backward(loss);
  const Values gradient = values_of(parameter.leaf()->gradient);
  CHECK(std::isfinite(loss.item()));
  CHECK(Values(gradient.begin() + 4, gradient.begin() + 8) == Values(4, 0.0));
  CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return std::isfinite(g); }));
}

TEST_CASE("weighted cross_entropy passes the check of its gradient", "[weighted_cross_entropy]") {
  const Tensor targets = Tensor::from<int32_t>({2, 3}, {0, 4, 2, -7, 1, 4});
  const Tensor weights = Tensor::from<float>({5}, {1, 0.5f, 2, 1, 0.25f});
  CHECK(check_gradient(
      [&](const auto& in) {
        return ops::cross_entropy(in[0], targets, {.class_weights = weights, .ignored = -7});
      },
      {random_tensor({2, 3, 5}, 1)}));
}

TEST_CASE("weighted cross_entropy has the same bits for every number of threads",
          "[weighted_cross_entropy]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor targets = targets_with(7, 77, 1001), weights = random_tensor({1001}, 3, 0.1f, 2);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor logits = as_parameter(random_tensor_of(dtype, {77, 1001}, 1, -2, 2));
    const Tensor loss =
        ops::cross_entropy(logits, targets, {.class_weights = weights, .ignored = 7});
    backward(loss);
    return std::vector{loss, logits.leaf()->gradient};
  }));
}

TEST_CASE("weighted cross_entropy overwrites logits that nothing else references",
          "[weighted_cross_entropy]") {
  const int64_t rows = 64, vocabulary = 1000;
  const Tensor parameter = as_parameter(random_tensor({rows, vocabulary}, 1, -2, 2));
  const Tensor targets = targets_with(-1, rows, vocabulary);
  const auto gradient = [&](bool keep_logits) {
    Tensor logits = ops::scale(parameter, 1.0f);
    const Tensor loss = ops::cross_entropy(logits, targets, {.ignored = -1});
    if (!keep_logits) logits = Tensor();
    memory_ledger().reset_peaks();
    const int64_t start = memory_ledger().current(Category::activations);
    backward(loss);
    const int64_t added = memory_ledger().peak(Category::activations) - start;
    CHECK((added >= parameter.bytes()) == keep_logits);
    return parameter.leaf()->gradient;
  };
  CHECK(same_bits(gradient(true), gradient(false)));
}

TEST_CASE("weighted cross_entropy refuses invalid arguments", "[weighted_cross_entropy]") {
  const Tensor logits = random_tensor({2, 5}, 1);
  const Tensor targets = random_indices({2}, 1, 5);
  CHECK_THROWS_WITH(ops::cross_entropy(logits, targets, {.class_weights = random_tensor({4}, 1)}),
                    "cross_entropy: class weights have shape [4], expected [5]");
  CHECK_THROWS_WITH(
      ops::cross_entropy(logits, targets, {.class_weights = random_indices({5}, 1, 3)}),
      "cross_entropy: class weights have dtype i32, expected f32");
  const Tensor beyond = Tensor::from<int32_t>({2}, {0, 5});
  CHECK_THROWS_WITH(ops::cross_entropy(logits, beyond, {.ignored = -1}),
                    ContainsSubstring("cross_entropy: target 5 at position 1 is outside the "
                                      "vocabulary of 5"));
  const Tensor negative = Tensor::from<int32_t>({2}, {-2, -1});
  CHECK_THROWS_WITH(ops::cross_entropy(logits, negative, {.ignored = -1}),
                    ContainsSubstring("target -2 at position 0"));
  const Tensor equal = Tensor::from<int32_t>({2}, {3, 3});
  CHECK_THROWS_WITH(ops::cross_entropy(logits, equal, {.ignored = 3}),
                    ContainsSubstring("cross_entropy: the weights of 2 targets add up to zero"));
  CHECK_THROWS_WITH(ops::cross_entropy(logits, targets, {.class_weights = Tensor::full({5}, 0)}),
                    ContainsSubstring("add up to zero"));
}

}  // namespace
}  // namespace tessera::test
