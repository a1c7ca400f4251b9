// Compares smoothed_cross_entropy's results and gradients with float64. Bits must not depend on
// threads.
#include "core/check_gradient.h"
#include "core/image_ops.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/label_smoothing.h"
#include "tests/support/catch.h"
#include "tests/support/cross_entropy_reference.h"
#include "tests/support/precision.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t rows, vocabulary;
  float smoothing;
};

/// Adds label smoothing to the reference of cross_entropy.
CrossEntropyReference smoothed(const Values& logits, const Tensor& targets, double smoothing,
                               double dloss) {
  CrossEntropyReference result(logits, targets, dloss);
  const auto target = targets.values<int32_t>();
  const size_t columns = logits.size() / target.size();
  const double rows = static_cast<double>(target.size());
  const double share = 1.0 / static_cast<double>(columns);
  for (size_t row = 0; row < target.size(); ++row) {
    for (size_t i = 0; i < columns; ++i) {
      const double change = (i == static_cast<size_t>(target[row]) ? 1.0 : 0.0) - share;
      result.loss += smoothing * change * logits[row * columns + i] / rows;
      result.dlogits[row * columns + i] += smoothing * change * dloss / rows;
    }
  }
  return result;
}

TEST_CASE("smoothed_cross_entropy and its gradient equal float64", "[label_smoothing]") {
  const auto [rows, vocabulary, smoothing] =
      GENERATE(Case{1, 1, 0.1f}, Case{1, 7, 0.5f}, Case{33, 10, 0.1f}, Case{12, 1000, 0.1f},
               Case{3, 17, 0.9f}, Case{5, 2049, 0.2f});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor logits = as_parameter(random_tensor_of(dtype, {rows, vocabulary}, 1, -4, 4));
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const Tensor loss = ops::smoothed_cross_entropy(logits, targets, smoothing);
  REQUIRE(loss.shape() == Shape{});
  REQUIRE(loss.dtype() == DType::f32);
  backward(loss, 3.0f);
  const CrossEntropyReference expected =
      smoothed(values_of(logits), targets, double{smoothing}, 3.0);
  CHECK(loss.item() == Catch::Approx(expected.loss).epsilon(1e-5).margin(1e-6));
  REQUIRE(logits.leaf()->gradient.dtype() == dtype);
  if (vocabulary > 1) {
    CHECK(relative_error(logits.leaf()->gradient, expected.dlogits) < tolerance(dtype, 1, 2e-5));
  } else {
    CHECK(max_error(logits.leaf()->gradient, {0.0}) < 1e-6);
  }
}

TEST_CASE("smoothed_cross_entropy is as precise for large logits as for small ones",
          "[label_smoothing]") {
  const int64_t rows = 8, vocabulary = GENERATE(2, 65, 1500);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  CAPTURE(vocabulary, dtype_name(dtype));
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const auto run = [&](float shift) {
    const Tensor logits = as_parameter(integer_logits(dtype, {rows, vocabulary}, shift));
    const Tensor loss = ops::smoothed_cross_entropy(logits, targets, 0.25f);
    backward(loss, 2.0f);
    const CrossEntropyReference expected = smoothed(values_of(logits), targets, 0.25, 2.0);
    CHECK(loss.item() == Catch::Approx(expected.loss).epsilon(1e-5));
    return std::vector{loss.detach(), logits.leaf()->gradient};
  };
  // The sums of logits and shift are exact, so the shift may not change a bit of the results.
  const auto small = run(0), large = run(large_shift(dtype));
  for (size_t i = 0; i < small.size(); ++i) CHECK(same_bits(large[i], small[i]));
}

TEST_CASE("smoothed_cross_entropy rounds its gradient once", "[label_smoothing]") {
  const DType dtype = GENERATE(from_range(half_dtypes()));
  const Tensor logits = as_parameter(random_tensor_of(dtype, {9, 301}, 1, -4, 4));
  const Tensor targets = random_indices({9}, 2, 301);
  backward(ops::smoothed_cross_entropy(logits, targets, 0.1f), 1024.0f);
  const Context context = test_context();
  const Tensor dloss = Tensor::full({}, 1024), wide = Tensor::empty(logits.shape());
  const Tensor losses = Tensor::empty({9}), normalizers = Tensor::empty({9, 2});
  kernels::cross_entropy_forward(context, losses, normalizers, logits, targets, 301);
  kernels::cross_entropy_backward(context, wide, dloss, logits, normalizers, targets, 301,
                                  1.0f / 9);
  kernels::label_smoothing_backward(context, wide, dloss, targets, 0.1f, 1.0f / 9);
  CHECK(same_bits(logits.leaf()->gradient, rounded_to(dtype, wide)));
}

TEST_CASE("smoothed_cross_entropy without smoothing is cross_entropy", "[label_smoothing]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor targets = random_indices({20}, 2, 31);
  const Tensor a = as_parameter(random_tensor_of(dtype, {20, 31}, 1, -2, 2));
  const Tensor b = as_parameter(a.detach());
  const Tensor plain = ops::cross_entropy(a, targets);
  const Tensor smooth = ops::smoothed_cross_entropy(b, targets, 0);
  CHECK(same_bits(smooth, plain));
  backward(plain);
  backward(smooth);
  CHECK(same_bits(b.leaf()->gradient, a.leaf()->gradient));
}

TEST_CASE("smoothed_cross_entropy passes the check of its gradient", "[label_smoothing]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const Tensor targets = random_indices({6}, 2, 5);
  CHECK(check_gradient(
      [&](const auto& in) { return ops::smoothed_cross_entropy(in[0], targets, 0.3f); },
      {random_tensor({6, 5}, 1)}, options));
}

TEST_CASE("smoothed_cross_entropy has the same bits for every number of threads",
          "[label_smoothing]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor targets = random_indices({77}, 2, 3001);
  const Tensor logits = random_tensor_of(dtype, {77, 3001}, 1, -2, 2);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor parameter = as_parameter(logits);
    const Tensor loss = ops::smoothed_cross_entropy(parameter, targets, 0.1f);
    backward(loss);
    return std::vector{loss, parameter.leaf()->gradient};
  }));
}

TEST_CASE("smoothed_cross_entropy takes a parameter that is gathered only while in use",
          "[label_smoothing]") {
  GatheredParameter logits(random_tensor({4, 5}, 1));
  backward(ops::smoothed_cross_entropy(logits.tensor, random_indices({4}, 2, 5), 0.1f));
  CHECK(logits.uses == 2);
}

TEST_CASE("smoothed_cross_entropy refuses invalid arguments", "[label_smoothing]") {
  using Catch::Matchers::ContainsSubstring;
  const Tensor logits = random_tensor({2, 5}, 1);
  const Tensor targets = random_indices({2}, 1, 5);
  CHECK_THROWS_WITH(ops::smoothed_cross_entropy(logits, targets, 1),
                    ContainsSubstring("smoothing is 1, expected in [0, 1)"));
  CHECK_THROWS_WITH(ops::smoothed_cross_entropy(logits, targets, -0.1f),
                    ContainsSubstring("smoothing is -0.1, expected in [0, 1)"));
  CHECK_THROWS_WITH(ops::smoothed_cross_entropy(logits, random_indices({3}, 1, 5), 0.1f),
                    "smoothed_cross_entropy: targets have shape [3], expected [2]");
  CHECK_THROWS_WITH(ops::smoothed_cross_entropy(logits, random_tensor({2}, 1), 0.1f),
                    "smoothed_cross_entropy: targets have dtype f32, expected i32");
  CHECK_THROWS_WITH(ops::smoothed_cross_entropy(Tensor::empty({0, 5}), targets, 0.1f),
                    ContainsSubstring("logits have shape [0, 5], expected a non-empty (R, V)"));
  const auto outside = [&] {
    const Tensor loss =
        ops::smoothed_cross_entropy(logits, Tensor::from<int32_t>({2}, {0, 5}), 0.1f);
    return loss.item();
  };
  CHECK_THROWS_WITH(outside(),
                    ContainsSubstring("smoothed_cross_entropy: target 5 at position 1 is outside "
                                      "the vocabulary of 5"));
}

}  // namespace
}  // namespace tessera::test
