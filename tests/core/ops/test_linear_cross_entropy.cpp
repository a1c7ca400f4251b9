#include "core/ops/linear_cross_entropy.h"

#include "tests/support/catch.h"
#include "tests/support/check_gradient.h"
#include "tests/support/cross_entropy_reference.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t rows, channels, vocabulary;
};

void check_against_reference(int64_t rows, int64_t channels, int64_t vocabulary) {
  const Tensor x = as_parameter(random_tensor({1, rows, channels}, 1, -2, 2));
  const Tensor weight = as_parameter(random_tensor({vocabulary, channels}, 2, -1, 1));
  const Tensor targets = random_indices({1, rows}, 3, vocabulary);
  const Tensor loss = ops::linear_cross_entropy(x, weight, targets);
  REQUIRE(loss.shape() == Shape{});
  backward(loss, 2.0f);
  const Values logits =
      product(values_of(x), values_of(weight), rows, vocabulary, channels, false, true);
  const CrossEntropyReference expected(logits, targets, 2.0);
  CHECK(loss.item() == Catch::Approx(expected.loss).epsilon(1e-5).margin(1e-6));
  CHECK(relative_error(x.leaf()->gradient, product(expected.dlogits, values_of(weight), rows,
                                                   channels, vocabulary)) < 5e-5);
  CHECK(relative_error(weight.leaf()->gradient, product(expected.dlogits, values_of(x), vocabulary,
                                                        channels, rows, true)) < 5e-5);
}

TEST_CASE("linear_cross_entropy and its gradients equal float64") {
  const auto [rows, channels, vocabulary] =
      GENERATE(Case{1, 1, 1}, Case{1, 5, 3}, Case{33, 17, 65}, Case{64, 8, 1000});
  check_against_reference(rows, channels, vocabulary);
}

TEST_CASE("linear_cross_entropy passes the check of its gradients") {
  const Tensor targets = random_indices({2, 4}, 3, 7);
  CHECK(check_gradient(
      [&](const auto& in) { return ops::linear_cross_entropy(in[0], in[1], targets); },
      {random_tensor({2, 4, 5}, 1), random_tensor({7, 5}, 2)}));
}

TEST_CASE("linear_cross_entropy in several chunks equals float64") {
  const int64_t vocabulary = 400000;
  const int64_t rows = 2 * ops::logits_chunk_rows(vocabulary) + 3;
  REQUIRE(rows == 85);
  check_against_reference(rows, 2, vocabulary);
}

int64_t peak_of(const Tensor& x, const Tensor& weight, const Tensor& targets, bool with_backward) {
  memory_ledger().reset_peaks();
  const int64_t before = memory_ledger().current_total();
  const Tensor loss = ops::linear_cross_entropy(x, weight, targets);
  if (with_backward) backward(loss);
  return memory_ledger().peak_total() - before;
}

TEST_CASE("linear_cross_entropy never holds more than one chunk of logits") {
  const int64_t vocabulary = 50000, channels = 4;
  const int64_t chunk = ops::logits_chunk_rows(vocabulary);
  const int64_t rows = 3 * chunk;
  const Tensor x = as_parameter(random_tensor({rows, channels}, 1));
  const Tensor weight = as_parameter(random_tensor({vocabulary, channels}, 2));
  const Tensor targets = random_indices({rows}, 3, vocabulary);
  const int64_t gradients = (rows + vocabulary) * channels * 4;
  // Besides the logits: rows of losses and logsumexp, and what a product packs.
  const int64_t small = int64_t{4} << 20;
  CHECK(peak_of(x, weight, targets, true) <= ops::logits_chunk_bytes + gradients + small);
  const NoGrad no_grad;
  CHECK(peak_of(x, weight, targets, false) <= ops::logits_chunk_bytes + small);
}

TEST_CASE("linear_cross_entropy keeps logits for the backward only where one is coming") {
  const Tensor x = random_tensor({100, 8}, 1);
  const Tensor weight = as_parameter(random_tensor({1000, 8}, 2));
  const Tensor targets = random_indices({100}, 3, 1000);
  const auto kept = [&] {
    const int64_t before = memory_ledger().current_total();
    const Tensor loss = ops::linear_cross_entropy(x, weight, targets);
    return memory_ledger().current_total() - before;
  };
  CHECK(kept() >= 100 * 1000 * 4);
  const NoGrad no_grad;
  CHECK(kept() < 1000);
}

TEST_CASE("linear_cross_entropy adds to the gradient of a tied weight") {
  const Tensor x = random_tensor({6, 8}, 1);
  const Tensor targets = random_indices({6}, 3, 10);
  const auto gradient = [&](bool with_loss, bool with_use) {
    const Tensor weight = as_parameter(random_tensor({10, 8}, 2));
    const Tensor use = ops::sum(ops::mul(weight, random_tensor({10, 8}, 4)));
    const Tensor loss = ops::linear_cross_entropy(x, weight, targets);
    backward(with_loss && with_use ? ops::add(loss, use) : with_loss ? loss : use);
    return values_of(weight.leaf()->gradient);
  };
  const Values both = gradient(true, true), loss = gradient(true, false),
               use = gradient(false, true);
  for (size_t i = 0; i < both.size(); ++i) CHECK(both[i] == Catch::Approx(loss[i] + use[i]));
}

TEST_CASE("linear_cross_entropy refuses what does not fit, and names it") {
  using Catch::Matchers::ContainsSubstring;
  const Tensor x = random_tensor({6, 8}, 1);
  const Tensor weight = random_tensor({256, 8}, 2);
  std::vector<int32_t> values{0, 1, 2, 3, 4, 300};
  CHECK_THROWS_WITH(
      ops::linear_cross_entropy(x, weight, Tensor::from<int32_t>({6}, values)),
      ContainsSubstring("linear_cross_entropy: target 300 at position 5 is outside the vocabulary "
                        "of 256"));
  CHECK_THROWS_WITH(
      ops::linear_cross_entropy(x, random_tensor({256, 9}, 2), random_indices({6}, 3, 256)),
      ContainsSubstring("linear_cross_entropy: x has shape [6, 8], expected [..., 9]"));
  CHECK_THROWS_WITH(ops::linear_cross_entropy(x, weight, random_indices({5}, 3, 256)),
                    ContainsSubstring("targets have shape [5], expected [6]"));
  CHECK_THROWS_WITH(ops::linear_cross_entropy(x, random_tensor({8}, 1), random_indices({6}, 3, 8)),
                    ContainsSubstring("weight has shape [8], expected [V, C]"));
}

}  // namespace
}  // namespace tessera::test
