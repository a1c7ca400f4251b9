#include "core/onednn.h"

#include <cstdint>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t m, n, k;
};

TEST_CASE("gemm equals float64 for every way its operands are stored") {
  const auto [m, n, k] =
      GENERATE(Case{1, 1, 1}, Case{3, 5, 7}, Case{64, 1, 33}, Case{1, 65, 16}, Case{130, 70, 129},
               Case{17, 31, 1}, Case{5, 64, 3000}, Case{2, 3, 9000});
  const bool transpose_a = GENERATE(false, true);
  const bool transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const bool with_bias = GENERATE(false, true);
  const Tensor a = random_tensor({m, k}, 1);
  const Tensor b = random_tensor({k, n}, 2);
  const Tensor c = random_tensor({m, n}, 3);
  const Tensor bias = random_tensor({n}, 4);
  Values expected = product(values_of(a), values_of(b), m, n, k, transpose_a, transpose_b);
  for (int64_t i = 0; i < m * n; ++i) {
    if (with_bias)
      expected[static_cast<size_t>(i)] += bias.values<float>()[static_cast<size_t>(i % n)];
    if (accumulate) expected[static_cast<size_t>(i)] += c.values<float>()[static_cast<size_t>(i)];
  }
  cpu::gemm({.m = m,
             .n = n,
             .k = k,
             .a = {a.raw(), transpose_a ? 1 : k, transpose_a ? m : 1},
             .b = {b.raw(), transpose_b ? 1 : n, transpose_b ? k : 1},
             .c = {c.raw(), n},
             .bias = with_bias ? bias.raw() : nullptr,
             .accumulate = accumulate});
  CHECK(relative_error(c, expected) < 1e-5);
}

TEST_CASE("gemm reads heads out of a packed tensor and broadcasts a shared operand") {
  // (T, 3, H, D): q of all heads, times the same k.
  const int64_t tokens = 9, heads = 3, size = 5, row = 3 * heads * size;
  const Tensor qkv = random_tensor({tokens, row}, 1);
  const Tensor scores = Tensor::full({heads, tokens, tokens}, -7.0f);
  const float* packed = qkv.data<float>();
  const bool shared = GENERATE(false, true);
  cpu::gemm({.batch = heads,
             .m = tokens,
             .n = tokens,
             .k = size,
             .a = {packed, row, 1, size},
             .b = {packed + heads * size, 1, row, shared ? 0 : size},
             .c = {scores.raw(), tokens, tokens * tokens}});
  Values expected;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < tokens; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < size; ++d) {
          sum += double(packed[i * row + h * size + d]) *
                 packed[j * row + (heads + (shared ? 0 : h)) * size + d];
        }
        expected.push_back(sum);
      }
    }
  }
  CHECK(relative_error(scores, expected) < 1e-6);
}

TEST_CASE("gemm of size zero: nothing happens, and a sum over no terms is zero or the bias") {
  const Tensor c = Tensor::full({2, 3}, 5.0f);
  const Tensor bias = Tensor::from<float>({3}, {1, 2, 3});
  cpu::gemm({.m = 0, .n = 3, .k = 4, .c = {c.raw(), 3}});
  cpu::gemm({.batch = 0, .m = 2, .n = 3, .k = 4, .c = {c.raw(), 3}});
  cpu::gemm({.m = 2, .n = 3, .k = 0, .c = {c.raw(), 3}, .accumulate = true});
  CHECK(values_of(c) == Values(6, 5.0));
  cpu::gemm({.m = 2, .n = 3, .k = 0, .c = {c.raw(), 3}, .bias = bias.raw()});
  CHECK(values_of(c) == Values{1, 2, 3, 1, 2, 3});
  cpu::gemm({.m = 2, .n = 3, .k = 0, .c = {c.raw(), 3}});
  CHECK(values_of(c) == Values(6, 0.0));
}

TEST_CASE("gemm gives the same bits wherever its operands lie") {
  const ThreadCountRestorer restore;
  set_thread_count(GENERATE(1, 2));
  const auto [m, n, k] = GENERATE(Case{100, 96, 130}, Case{64, 384, 65}, Case{7, 33, 1000});
  const bool transpose_a = GENERATE(false, true);
  const Tensor a = random_tensor({m * k}, 1);
  const Tensor b = random_tensor({k * n}, 2);
  Tensor first;
  for (int64_t offset = 0; offset <= 16; ++offset) {
    const Tensor moved_a = Tensor::empty({m * k + offset});
    const Tensor moved_b = Tensor::empty({k * n + offset});
    const Tensor moved_c = Tensor::empty({m * n + offset});
    const Tensor c = moved_c.flat(offset, offset + m * n);
    const auto values_a = a.values<float>();
    const auto values_b = b.values<float>();
    std::copy(values_a.begin(), values_a.end(), moved_a.data<float>() + offset);
    std::copy(values_b.begin(), values_b.end(), moved_b.data<float>() + offset);
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = {moved_a.data<float>() + offset, transpose_a ? 1 : k, transpose_a ? m : 1},
               .b = {moved_b.data<float>() + offset, n},
               .c = {c.raw(), n}});
    if (offset == 0) first = c;
    CHECK(same_bits(c, first));
  }
}

TEST_CASE("gemm works inside a parallel region, and gives there what one thread gives") {
  const int64_t size = 65;
  const Tensor a = random_tensor({size, size}, 1);
  const Tensor b = random_tensor({size, size}, 2);
  const Tensor expected = Tensor::empty({size, size});
  const auto multiply = [&](const Tensor& c) {
    cpu::gemm({.m = size,
               .n = size,
               .k = size,
               .a = {a.raw(), size},
               .b = {b.raw(), size},
               .c = {c.raw(), size},
               .threads = 1});
  };
  multiply(expected);
  std::vector<Tensor> results;
  for (int i = 0; i < 24; ++i) results.push_back(Tensor::empty({size, size}));
#pragma omp parallel for num_threads(3)
  for (int i = 0; i < 24; ++i) multiply(results[static_cast<size_t>(i)]);
  for (const Tensor& result : results) CHECK(same_bits(result, expected));
}

TEST_CASE("gemm names the call that oneDNN refused") {
  const Tensor x = Tensor::full({4, 4}, 1.0f);
  const cpu::GemmArgs bad{
      .m = 4, .n = 4, .k = 4, .a = {x.raw(), -4}, .b = {x.raw(), 4}, .c = {x.raw(), 4}};
  CHECK_THROWS_WITH(cpu::gemm(bad), Catch::Matchers::ContainsSubstring("oneDNN: dnnl::"));
}

}  // namespace
}  // namespace tessera::test
