#include "core/check_gradient.h"
#include "core/ops/cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/cross_entropy_reference.h"
#include "tests/support/precision.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t rows, vocabulary;
  float scale;
};

TEST_CASE("cross_entropy and its gradient equal float64") {
  const auto [rows, vocabulary, scale] = GENERATE(Case{1, 1, 1}, Case{1, 7, 1}, Case{33, 65, 4},
                                                  Case{12, 1000, 100}, Case{3, 17, 1e4f});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor logits =
      as_parameter(random_tensor_of(dtype, {1, rows, vocabulary}, 1, -scale, scale));
  const Tensor targets = random_indices({1, rows}, 2, vocabulary);
  const Tensor loss = ops::cross_entropy(logits, targets);
  REQUIRE(loss.shape() == Shape{});
  REQUIRE(loss.dtype() == DType::f32);
  backward(loss, 3.0f);
  const CrossEntropyReference expected(values_of(logits), targets, 3.0);
  CHECK(loss.item() == Catch::Approx(expected.loss).epsilon(1e-5).margin(1e-6));
  REQUIRE(logits.leaf()->gradient.dtype() == dtype);
  CHECK(relative_error(logits.leaf()->gradient, expected.dlogits) < tolerance(dtype, 1, 2e-5));
}

TEST_CASE("cross_entropy's gradient can have another dtype than the logits") {
  const int64_t rows = 9, vocabulary = 301;
  const DType dtype = GENERATE(from_range(half_dtypes()));
  const Context context = test_context();
  const Tensor logits = random_tensor({rows, vocabulary}, 1, -4, 4);
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const Tensor losses = Tensor::empty({rows}), normalizers = Tensor::empty({rows, 2});
  kernels::cross_entropy_forward(context, losses, normalizers, logits, targets, vocabulary);
  const Tensor dloss = Tensor::full({}, 1024.0f);
  const Tensor wide = Tensor::empty(logits.shape());
  const Tensor narrow = Tensor::empty(logits.shape(), dtype);
  for (const Tensor& dlogits : {wide, narrow}) {
    kernels::cross_entropy_backward(context, dlogits, dloss, logits, normalizers, targets,
                                    vocabulary, 0.25f);
  }
  CHECK(same_bits(narrow, rounded_to(dtype, wide)));
}

TEST_CASE("cross_entropy neither reads nor writes the padding behind a row") {
  // Each pair is the size of a vocabulary and the stride of the logits. The pairs differ in how the
  // forward on CUDA reads a row:
  //   A warp reads a row of at most 1024 elements, and a block reads a longer row.
  //   Threads load vectors of several elements. A row may end inside a vector.
  //   If the stride is odd, threads load single elements.
  using Widths = std::pair<int64_t, int64_t>;
  const auto [vocabulary, stride] =
      GENERATE(Widths{65, 128}, Widths{61, 64}, Widths{7, 9}, Widths{1, 64}, Widths{1025, 1088},
               Widths{3001, 3008}, Widths{9217, 9280}, Widths{1030, 1031}, Widths{1000, 1024},
               Widths{3200, 3264});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  CAPTURE(vocabulary, stride, dtype_name(dtype));
  const int64_t rows = 5;
  const Context context = test_context();
  const Tensor plain = random_tensor_of(dtype, {rows, vocabulary}, 1, -4, 4);
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const Tensor dloss = Tensor::full({}, 2.0f);
  const Tensor logits = padded(plain, stride, std::nanf(""));
  const Tensor losses = Tensor::empty({rows}), normalizers = Tensor::empty({rows, 2});
  kernels::cross_entropy_forward(context, losses, normalizers, logits, targets, vocabulary);
  const Tensor dlogits = padded(plain, stride, 7);
  kernels::cross_entropy_backward(context, dlogits, dloss, logits, normalizers, targets, vocabulary,
                                  1.0f / rows);

  const CrossEntropyReference expected(values_of(plain), targets, 2.0);
  double loss = 0;
  for (const double value : values_of(losses)) loss += value / rows;
  CHECK(loss == Catch::Approx(expected.loss).epsilon(1e-5));
  const auto [gradient, behind] = without_padding(dlogits, vocabulary);
  CHECK(relative_error(gradient, expected.dlogits) < tolerance(dtype, 1, 2e-5));
  CHECK(behind == Values(behind.size(), 7));
  // The gradient may also overwrite the logits.
  kernels::cross_entropy_backward(context, logits, dloss, logits, normalizers, targets, vocabulary,
                                  1.0f / rows);
  CHECK(same_bits(without_padding(logits, vocabulary).rows, gradient));
}

TEST_CASE("cross_entropy in place gives the forward's losses and float64's gradient") {
  using Widths = std::pair<int64_t, int64_t>;
  const auto [vocabulary, stride] =
      GENERATE(Widths{65, 128}, Widths{7, 9}, Widths{1, 64}, Widths{1024, 1024}, Widths{3001, 3008},
               Widths{9217, 9280}, Widths{1030, 1031});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  CAPTURE(vocabulary, stride, dtype_name(dtype));
  const int64_t rows = 11;
  const Context context = test_context();
  const Tensor plain = random_tensor_of(dtype, {rows, vocabulary}, 1, -4, 4);
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const Tensor logits = padded(plain, stride, 7);
  const Tensor expected_losses = Tensor::empty({rows}), normalizers = Tensor::empty({rows, 2});
  kernels::cross_entropy_forward(context, expected_losses, normalizers, logits, targets,
                                 vocabulary);
  const Tensor losses = Tensor::empty({rows});
  kernels::cross_entropy_in_place(context, losses, logits, targets, vocabulary, 2.0f / rows);
  CHECK(same_bits(losses, expected_losses));
  const CrossEntropyReference expected(values_of(plain), targets, 2.0);
  const auto [gradient, behind] = without_padding(logits, vocabulary);
  CHECK(relative_error(gradient, expected.dlogits) < tolerance(dtype, 1, 2e-5));
  CHECK(behind == Values(behind.size(), 7));
}

TEST_CASE("cross_entropy is as precise for large logits as for small ones") {
  const int64_t rows = 8, vocabulary = GENERATE(2, 7, 65, 1500);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  CAPTURE(vocabulary, dtype_name(dtype));
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const auto run = [&](float shift) {
    const Tensor logits = as_parameter(integer_logits(dtype, {rows, vocabulary}, shift));
    const Tensor loss = ops::cross_entropy(logits, targets);
    backward(loss, 2.0f);
    const CrossEntropyReference expected(values_of(logits), targets, 2.0);
    CHECK(loss.item() == Catch::Approx(expected.loss).epsilon(1e-5));
    CHECK(relative_error(logits.leaf()->gradient, expected.dlogits) < tolerance(dtype, 1, 2e-5));
    const Tensor losses = Tensor::empty({rows});
    const Tensor in_place = integer_logits(dtype, logits.shape(), shift);
    kernels::cross_entropy_in_place(test_context(), losses, in_place, targets, vocabulary, 1);
    return std::vector{loss.detach(), logits.leaf()->gradient, losses, in_place};
  };
  // The sums of logits and shift are exact, so the shift may not change a bit of the results.
  const auto small = run(0), large = run(large_shift(dtype));
  for (size_t i = 0; i < small.size(); ++i) CHECK(same_bits(large[i], small[i]));
}

TEST_CASE("cross_entropy of two logits that differ by one") {
  const float logit = GENERATE(0.0f, 1e4f, 1e5f, 1.6e7f, -1.6e7f);
  const Tensor logits = Tensor::from<float>({1, 2}, {logit + 1, logit});
  const Tensor loss = ops::cross_entropy(logits, Tensor::from<int32_t>({1}, {0}));
  CHECK(loss.item() == Catch::Approx(0.31326169).epsilon(1e-6));
}

TEST_CASE("cross_entropy passes the check of its gradient") {
  const Tensor targets = random_indices({3, 4}, 2, 5);
  CHECK(check_gradient([&](const auto& in) { return ops::cross_entropy(in[0], targets); },
                       {random_tensor({3, 4, 5}, 1)}));
}

TEST_CASE("cross_entropy writes its gradient over logits that nothing else references") {
  const int64_t rows = 64, vocabulary = 1000;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor parameter = as_parameter(random_tensor_of(dtype, {rows, vocabulary}, 1, -2, 2));
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const auto gradient = [&](bool keep_logits) {
    Tensor logits = ops::scale(parameter, 1.0f);
    const Tensor loss = ops::cross_entropy(logits, targets);
    const Values before = values_of(logits);
    if (!keep_logits) logits = Tensor();
    memory_ledger().reset_peaks();
    const int64_t start = memory_ledger().current(Category::activations);
    backward(loss);
    // Logits that are still referenced must stay unchanged. Logits that nothing references any more
    // are overwritten by the gradient, which saves a second tensor of their size.
    if (keep_logits) CHECK(values_of(logits) == before);
    const int64_t added = memory_ledger().peak(Category::activations) - start;
    CHECK((added >= rows * vocabulary * dtype_size(dtype)) == keep_logits);
    return parameter.leaf()->gradient;
  };
  CHECK(same_bits(gradient(true), gradient(false)));
}

TEST_CASE("cross_entropy has the same bits for every number of threads") {
  const ThreadCountRestorer restore;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor targets = random_indices({77}, 2, 3001);
  Tensor first_loss, first_gradient;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    const Tensor logits = as_parameter(random_tensor_of(dtype, {77, 3001}, 1, -2, 2));
    const Tensor loss = ops::cross_entropy(logits, targets);
    backward(loss);
    if (threads == 1) first_loss = loss.detach();
    if (threads == 1) first_gradient = logits.leaf()->gradient;
    CHECK(same_bits(loss, first_loss));
    CHECK(same_bits(logits.leaf()->gradient, first_gradient));
  }
}

TEST_CASE("cross_entropy of logits that are infinite or NaN") {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor targets = Tensor::from<int32_t>({1}, {1});
  const auto loss = [&](std::vector<float> logits) {
    return ops::cross_entropy(Tensor::from<float>({1, 3}, logits), targets).item();
  };
  CHECK(loss({-infinity, 0, -infinity}) == 0.0f);
  CHECK(loss({0, -infinity, 0}) == infinity);
  CHECK(std::isnan(loss({0, 0, std::nanf("")})));
}

TEST_CASE("cross_entropy refuses invalid arguments") {
  using Catch::Matchers::ContainsSubstring;
  const Tensor logits = random_tensor({2, 5}, 1);
  CHECK_THROWS_WITH(ops::cross_entropy(logits, random_indices({3}, 1, 5)),
                    ContainsSubstring("cross_entropy: targets have shape [3], expected [2]"));
  CHECK_THROWS_WITH(ops::cross_entropy(logits, random_tensor({2}, 1)),
                    ContainsSubstring("cross_entropy: targets have dtype f32, expected i32"));
  CHECK_THROWS_WITH(ops::cross_entropy(logits, Tensor::from<int32_t>({2}, {0, 5})),
                    ContainsSubstring("cross_entropy: target 5 at position 1 is outside the "
                                      "vocabulary of 5"));
  CHECK_THROWS_WITH(ops::cross_entropy(logits, Tensor::from<int32_t>({2}, {-1, 0})),
                    ContainsSubstring("target -1 at position 0"));
  CHECK_THROWS_WITH(ops::cross_entropy(Tensor::empty({0, 5}), Tensor::empty({0}, DType::i32)),
                    ContainsSubstring("cross_entropy: targets have shape [0], expected at least "
                                      "one row"));
  CHECK_THROWS_WITH(
      ops::cross_entropy(Tensor::empty({2, 0}), Tensor::from<int32_t>({2}, {0, 0})),
      ContainsSubstring("cross_entropy: logits have shape [2, 0], expected at least one column"));
}

}  // namespace
}  // namespace tessera::test
