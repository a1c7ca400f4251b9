// Compares embedding's result bit by bit with plain loops, and the gradients of the table and of
// the positions with float64. Bits must not depend on threads.
#include <string>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/embedding.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;

namespace {

Tensor random_tokens(int64_t batch, int64_t length, int64_t vocabulary, uint64_t seed) {
  RandomStream random(seed, "tokens", 0);
  const Tensor tokens = Tensor::empty({batch, length}, DType::i32);
  for (int32_t& token : tokens.values<int32_t>()) {
    token = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

struct Case {
  int64_t batch, length, vocabulary, channels;
};

Case any_case() {
  return GENERATE(values<Case>({{1, 1, 1, 1},
                                {2, 5, 7, 3},
                                {3, 4, 300, 17},  // most tokens of the vocabulary do not occur
                                {4, 9, 2, 256},
                                {2, 8, 5, 600},
                                {0, 4, 5, 8},
                                {2, 0, 5, 8}}));
}

std::vector<double> table_reference(const Case& c, const Tensor& tokens, const Tensor& dy) {
  std::vector<double> result(static_cast<size_t>(c.vocabulary * c.channels));
  const std::vector<double> gradient = doubles(dy);
  for (int64_t r = 0; r < c.batch * c.length; ++r) {
    for (int64_t i = 0; i < c.channels; ++i) {
      result[static_cast<size_t>(tokens.data<int32_t>()[r] * c.channels + i)] +=
          gradient[static_cast<size_t>(r * c.channels + i)];
    }
  }
  return result;
}

TEST_CASE("embedding takes indices of any shape", "[embedding]") {
  const Tensor flat = random_indices({12}, 1, 7), rows = random_tensor({12, 5}, 3);
  const Tensor expected = as_parameter(random_tensor({7, 5}, 2));
  backward_from(ops::embedding(flat, expected), rows);
  for (const Shape& shape : {Shape{2, 6}, Shape{2, 3, 2}, Shape{1, 3, 2, 2}}) {
    const Tensor table = as_parameter(random_tensor({7, 5}, 2));
    const Tensor y = ops::embedding(flat.view(shape), table);
    Shape with_channels = shape;
    with_channels.push_back(5);
    REQUIRE(y.shape() == with_channels);
    CHECK(values_of(y) == values_of(ops::embedding(flat, table)));
    backward_from(y, rows.view(with_channels));
    CHECK(same_bits(table.leaf()->gradient, expected.leaf()->gradient));
  }
  const Tensor one = ops::embedding(random_indices({}, 1, 7), expected);
  CHECK(one.shape() == Shape{5});
  REQUIRE_THROWS_WITH(ops::embedding(flat, expected, random_tensor({12, 5}, 1)),
                      "embedding: tokens are i32 [12], expected i32 (B, T)");
}

}  // namespace

TEST_CASE("embedding looks up and adds positions", "[embedding]") {
  const Case c = any_case();
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor tokens = random_tokens(c.batch, c.length, c.vocabulary, 1);
  const Tensor table = random_tensor_of(dtype, {c.vocabulary, c.channels}, 2);
  const Tensor positions = random_tensor_of(dtype, {c.length + 2, c.channels}, 3);
  const Tensor words = widened(table), places = widened(positions);
  const Tensor plain = Tensor::empty({c.batch, c.length, c.channels});
  const Tensor placed = Tensor::empty(plain.shape());
  for (int64_t r = 0; r < c.batch * c.length; ++r) {
    for (int64_t i = 0; i < c.channels; ++i) {
      const float word = words.data<float>()[tokens.data<int32_t>()[r] * c.channels + i];
      const float place = places.data<float>()[r % c.length * c.channels + i];
      plain.data<float>()[r * c.channels + i] = word;
      placed.data<float>()[r * c.channels + i] = word + place;
    }
  }
  REQUIRE(same_bits(ops::embedding(tokens, table), rounded_to(dtype, plain)));
  REQUIRE(same_bits(ops::embedding(tokens, table, positions), rounded_to(dtype, placed)));
}

TEST_CASE("embedding's table gradient, overwriting and accumulating", "[embedding]") {
  const Case c = any_case();
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Context context = test_context();
  const Tensor tokens = random_tokens(c.batch, c.length, c.vocabulary, 1);
  const Tensor dy = random_tensor_of(dtype, {c.batch, c.length, c.channels}, 2);
  const Tensor sums = Tensor::full({c.vocabulary, c.channels}, 99);
  kernels::embedding_backward(context, "embedding", sums, widened(dy), tokens, false);
  REQUIRE(max_error(sums, table_reference(c, tokens, dy)) < 1e-6);
  const Tensor dtable = rounded_to(dtype, Tensor::full({c.vocabulary, c.channels}, 99));
  kernels::embedding_backward(context, "embedding", dtable, dy, tokens, false);
  REQUIRE(same_bits(dtable, rounded_to(dtype, sums)));

  // With accumulation, the sum for each element of the table is computed in fp32, and then added to
  // the old value once. So the result must have the bits of a separate fp32 addition.
  const Tensor before = random_tensor_of(dtype, {c.vocabulary, c.channels}, 3);
  kernels::add(context, sums, sums, widened(before));
  kernels::embedding_backward(context, "embedding", before, dy, tokens, true);
  REQUIRE(same_bits(before, rounded_to(dtype, sums)));
}

TEST_CASE("embedding's position gradient", "[embedding]") {
  const Case c = any_case();
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor dy = random_tensor_of(dtype, {c.batch, c.length, c.channels}, 2);
  std::vector<double> expected(static_cast<size_t>((c.length + 2) * c.channels));
  const std::vector<double> gradient = doubles(dy);
  const auto sequence = static_cast<size_t>(c.length * c.channels);
  for (size_t i = 0; i < gradient.size(); ++i) expected[i % sequence] += gradient[i];
  const Tensor dpositions = rounded_to(dtype, Tensor::full({c.length + 2, c.channels}, 99));
  kernels::position_backward(test_context(), dpositions, dy, c.length);
  REQUIRE(max_error(dpositions, expected) < tolerance(dtype, 1, 1e-6));
}

TEST_CASE("embedding's gradients", "[embedding]") {
  const Tensor tokens = Tensor::from<int32_t>({2, 3}, {4, 0, 4, 4, 2, 0});
  const Tensor table = random_tensor({6, 5}, 1), positions = random_tensor({4, 5}, 2);
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())),
                                     .roundings = 4};
  REQUIRE(check_gradient([&](const auto& in) { return ops::embedding(tokens, in[0], in[1]); },
                         {table, positions}, options));
  REQUIRE(check_gradient([&](const auto& in) { return ops::embedding(tokens, in[0]); }, {table},
                         options));
  // The operation uses the table twice, so the second gradient is added to the first.
  REQUIRE(check_gradient(
      [&](const auto& in) {
        return ops::mul(ops::embedding(tokens, in[0]), ops::embedding(tokens, in[0]));
      },
      {table}, options));
}

TEST_CASE("embedding's bits do not depend on the number of threads", "[embedding]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor tokens = random_tokens(8, 60, 90, 1);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor table = leaf(random_tensor_of(dtype, {97, 70}, 2));
    const Tensor positions = leaf(random_tensor_of(dtype, {64, 70}, 3));
    const Tensor y = ops::embedding(tokens, table, positions);
    backward(ops::sum(ops::mul(y, y)));
    return std::vector{y.detach(), gradient_of(table), gradient_of(positions)};
  }));
}

TEST_CASE("embedding's workspace for sorting is in the ledger, and is freed", "[embedding]") {
  const Tensor tokens = random_tokens(3, 5, 11, 1);
  const Tensor dtable = Tensor::empty({11, 4});
  const int64_t before = memory_ledger().current(Category::workspace);
  memory_ledger().reset_peaks();
  kernels::embedding_backward(test_context(), "embedding", dtable, random_tensor({3, 5, 4}, 2),
                              tokens, false);
  REQUIRE(memory_ledger().peak(Category::workspace) - before == (11 + 1 + 15) * 4);
  REQUIRE(memory_ledger().current(Category::workspace) == before);
}

TEST_CASE("embedding refuses invalid arguments", "[embedding]") {
  const Tensor tokens = Tensor::from<int32_t>({2, 3}, {0, 1, 2, 3, 4, 300});
  const Tensor table = random_tensor({256, 8}, 1);
  REQUIRE_THROWS_WITH(ops::embedding(tokens, table),
                      "embedding: token 300 at position 5 is outside the vocabulary of 256");
  tokens.data<int32_t>()[5] = -1;
  REQUIRE_THROWS_WITH(ops::embedding(tokens, table),
                      "embedding: token -1 at position 5 is outside the vocabulary of 256");
  tokens.data<int32_t>()[5] = 0;
  REQUIRE_THROWS_WITH(ops::embedding(tokens, table, random_tensor({2, 8}, 2)),
                      "embedding: positions have shape [2, 8], expected at least [3, 8]");
  REQUIRE_THROWS_WITH(ops::embedding(random_tensor({2, 3}, 1), table),
                      "embedding: tokens are f32 [2, 3], expected i32 of at most four dimensions");
  REQUIRE_THROWS_WITH(ops::embedding(tokens, random_tensor({8}, 1)),
                      "embedding: table has shape [8], expected (V, C)");
}

TEST_CASE("errors of embedding_backward name the operation that calls it", "[embedding]") {
  const Tensor tokens = Tensor::from<int32_t>({1, 2}, {0, 1});
  const Tensor integers = Tensor::from<int32_t>({2, 1}, {5, 6});
  const auto operation = GENERATE(as<std::string>{}, "embedding", "index_select", "gather");
  REQUIRE_THROWS_WITH(kernels::embedding_backward(test_context(), operation.c_str(), integers,
                                                  integers, tokens, false),
                      operation + ": dtype i32 is not supported, expected f32, bf16 or f16");
}
