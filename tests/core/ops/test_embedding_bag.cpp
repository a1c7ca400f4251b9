// Compares embedding_bag's results and gradients with float64. With one index per bag, the bits
// must equal those of embedding. Bits must not depend on threads. Also tests the size of the
// workspace.
#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/embedding_bag.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

/// Describes bags of the given sizes. Before the first bag there are `before` indices, and after
/// the last bag `behind`. These indices outside of the bags are invalid tokens, so an operation
/// that reads them fails.
struct Case {
  std::vector<int32_t> sizes;
  int64_t vocabulary, channels;
  int32_t before = 0, behind = 0;

  int64_t bags() const { return static_cast<int64_t>(sizes.size()); }
  Tensor offsets() const {
    std::vector<int32_t> values{before};
    for (const int32_t size : sizes) values.push_back(values.back() + size);
    return Tensor::from<int32_t>({bags() + 1}, values);
  }
  Tensor indices() const {
    const int32_t end = offsets().values<int32_t>().back();
    const Tensor result = random_indices({end + behind}, 1, vocabulary);
    const auto values = result.values<int32_t>();
    std::fill_n(values.begin(), before, -7);
    std::fill_n(values.begin() + end, behind, 1 << 30);
    return result;
  }
};

Case any_case() {
  std::vector<int32_t> many(40, 9);
  many[3] = 400;  // a long bag among short ones
  return GENERATE_COPY(values<Case>({{{1}, 1, 1},
                                     {{0}, 3, 5},
                                     {{3, 0, 2, 0, 0}, 7, 3, 0, 4},
                                     {{0, 5, 1}, 300, 17, 2, 1},
                                     {{300, 0, 500}, 2, 66, 3, 2},  // each token many times
                                     {many, 50, 70, 1, 3},
                                     {{}, 5, 8, 0, 2},
                                     {{2, 2}, 5, 600}}));
}

struct Reference {
  Values y, dtable;
};

Reference reference(const Case& c, const Tensor& table, const Tensor& dy, const Tensor& scale) {
  Reference r{Values(static_cast<size_t>(dy.elements())),
              Values(static_cast<size_t>(table.elements()))};
  const Values rows = values_of(table), grad = values_of(dy);
  const Tensor offsets = c.offsets(), indices = c.indices();
  for (int64_t b = 0; b < c.bags(); ++b) {
    const double factor = scale.defined() ? double{scale.data<float>()[b]} : 1.0;
    for (int32_t p = offsets.data<int32_t>()[b]; p < offsets.data<int32_t>()[b + 1]; ++p) {
      for (int64_t i = 0; i < c.channels; ++i) {
        const auto from = static_cast<size_t>(indices.data<int32_t>()[p] * c.channels + i);
        const auto to = static_cast<size_t>(b * c.channels + i);
        r.y[to] += factor * rows[from];
        r.dtable[from] += factor * grad[to];
      }
    }
  }
  return r;
}

TEST_CASE("embedding_bag and its gradient equal float64", "[embedding_bag]") {
  const Case c = any_case();
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor scale = GENERATE(true, false) ? random_tensor({c.bags()}, 4) : Tensor{};
  const Tensor table = as_parameter(random_tensor_of(dtype, {c.vocabulary, c.channels}, 2));
  const Tensor dy = random_tensor_of(dtype, {c.bags(), c.channels}, 3);
  const Tensor y = ops::embedding_bag(c.indices(), c.offsets(), table, scale);
  backward_from(y, dy);
  REQUIRE(y.shape() == Shape{c.bags(), c.channels});
  const Reference expected = reference(c, table, dy, scale);
  CHECK(relative_error(y, expected.y) < tolerance(dtype));
  CHECK(relative_error(table.leaf()->gradient, expected.dtable) < tolerance(dtype));
}

TEST_CASE("embedding_bag with one index per bag has the bits of embedding", "[embedding_bag]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor indices = random_indices({90}, 1, 11);
  const Tensor offsets = Tensor::empty({91}, DType::i32);
  for (int32_t i = 0; i <= 90; ++i) offsets.data<int32_t>()[i] = i;
  const Tensor table = as_parameter(random_tensor_of(dtype, {11, 37}, 2));
  const Tensor other = as_parameter(table.detach());
  const Tensor dy = random_tensor_of(dtype, {90, 37}, 3);
  const Tensor y = ops::embedding_bag(indices, offsets, table);
  const Tensor expected = ops::embedding(indices, other);
  CHECK(same_bits(y, expected));
  backward_from(y, dy);
  backward_from(expected, dy);
  CHECK(same_bits(table.leaf()->gradient, other.leaf()->gradient));
}

TEST_CASE("embedding_bag: a bag is one fp32 sum in order, rounded once", "[embedding_bag]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor table = random_tensor_of(dtype, {5, 9}, 1);
  const Tensor wide = widened(table);
  const Tensor indices = Tensor::from<int32_t>({4}, {3, 1, 3, 0});
  const Tensor scale = Tensor::from<float>({1}, {0.3f});
  const Tensor expected = Tensor::zeros({1, 9});
  for (const int32_t row : {3, 1, 3, 0}) {
    for (int64_t i = 0; i < 9; ++i) expected.data<float>()[i] += wide.data<float>()[row * 9 + i];
  }
  const Tensor offsets = Tensor::from<int32_t>({2}, {0, 4});
  CHECK(same_bits(ops::embedding_bag(indices, offsets, table), rounded_to(dtype, expected)));
  for (float& value : expected.values<float>()) value *= 0.3f;
  CHECK(same_bits(ops::embedding_bag(indices, offsets, table, scale), rounded_to(dtype, expected)));
}

TEST_CASE("embedding_bag's gradient is summed in fp32, and added to each element once",
          "[embedding_bag]") {
  const Case c = any_case();
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Context context = test_context();
  const Bags bags{c.indices(), c.offsets(), random_tensor({c.bags()}, 4)};
  const Tensor dy = random_tensor_of(dtype, {c.bags(), c.channels}, 3);
  const Tensor sums = Tensor::full({c.vocabulary, c.channels}, 99);
  kernels::embedding_bag_backward(context, sums, widened(dy), bags, false);
  const Tensor before = random_tensor_of(dtype, {c.vocabulary, c.channels}, 5);
  kernels::add(context, sums, sums, widened(before));
  kernels::embedding_bag_backward(context, before, dy, bags, true);
  CHECK(same_bits(before, rounded_to(dtype, sums)));
}

TEST_CASE("embedding_bag passes the check of its gradient", "[embedding_bag]") {
  const Tensor indices = Tensor::from<int32_t>({7}, {4, 0, 4, 4, 2, 0, 99});
  const Tensor offsets = Tensor::from<int32_t>({5}, {0, 3, 3, 5, 6});
  const Tensor scale = Tensor::from<float>({4}, {0.5f, 2.0f, -1.5f, 1.0f});
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())), .roundings = 4};
  CHECK(check_gradient(
      [&](const auto& in) {  // the table has two uses, so backward must add to its gradient
        return ops::mul(ops::embedding_bag(indices, offsets, in[0], scale),
                        ops::embedding_bag(indices, offsets, in[0]));
      },
      {random_tensor({6, 5}, 1)}, options));
}

TEST_CASE("embedding_bag's bits do not depend on the number of threads", "[embedding_bag]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case c{std::vector<int32_t>(60, 11), 90, 70, 2, 5};
  const Tensor indices = c.indices(), offsets = c.offsets(), scale = random_tensor({60}, 4);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor table = leaf(random_tensor_of(dtype, {90, 70}, 2));
    const Tensor y = ops::embedding_bag(indices, offsets, table, scale);
    backward(ops::sum(ops::mul(y, y)));
    return std::vector{y.detach(), gradient_of(table)};
  }));
}

TEST_CASE("embedding_bag's workspace depends on sizes alone", "[embedding_bag]") {
  const int32_t used = GENERATE(0, 1, 15);
  const Tensor offsets = Tensor::from<int32_t>({3}, {0, used / 2, used});
  const Bags bags{random_indices({15}, 1, 11), offsets, {}};
  const Tensor dtable = Tensor::empty({11, 4});
  MemoryLedger& ledger = memory_ledger(default_device());
  const int64_t before = ledger.current(Category::workspace);
  ledger.reset_peaks();
  kernels::embedding_bag_backward(test_context(), dtable, random_tensor({2, 4}, 2), bags, false);
  CHECK(ledger.peak(Category::workspace) - before == (11 + 1 + 15) * 4);
  CHECK(ledger.current(Category::workspace) == before);
}

TEST_CASE("embedding_bag refuses shapes and dtypes that do not fit, and names them",
          "[embedding_bag]") {
  const Tensor indices = Tensor::from<int32_t>({3}, {0, 1, 2});
  const Tensor offsets = Tensor::from<int32_t>({3}, {0, 1, 3});
  const Tensor table = random_tensor({4, 8}, 1);
  REQUIRE_THROWS_WITH(ops::embedding_bag(random_tensor({3}, 1), offsets, table),
                      "embedding_bag: indices are f32 [3], expected i32 (L)");
  REQUIRE_THROWS_WITH(ops::embedding_bag(indices, Tensor::empty({0}, DType::i32), table),
                      "embedding_bag: offsets are i32 [0], expected i32 (B + 1)");
  REQUIRE_THROWS_WITH(ops::embedding_bag(indices, offsets, random_tensor({8}, 1)),
                      "embedding_bag: table has shape [8], expected (V, C)");
  REQUIRE_THROWS_WITH(ops::embedding_bag(indices, offsets, table, random_tensor({3}, 1)),
                      "embedding_bag: scale is f32 [3], expected f32 [2]");
  REQUIRE_THROWS_WITH(
      ops::embedding_bag(indices, offsets, table, as_parameter(random_tensor({2}, 1))),
      "embedding_bag: scale requires a gradient, which is not computed; multiply the result by "
      "scale instead");
  const Tensor integers = Tensor::from<int32_t>({2, 1}, {5, 6});
  const Bags bags{Tensor::from<int32_t>({3}, {0, 1, 1}), offsets, {}};
  REQUIRE_THROWS_WITH(
      kernels::embedding_bag_backward(test_context(), integers, integers, bags, false),
      Catch::Matchers::ContainsSubstring("embedding_bag") &&
          Catch::Matchers::ContainsSubstring("dtype i32 is not supported"));
}

/// Looks up the indices in a table of 4 tokens. Throws if an index or an offset is out of range.
void look_up(const Tensor& indices, const Tensor& offsets) {
  ops::embedding_bag(indices, offsets, random_tensor({4, 8}, 1));
}

TEST_CASE("embedding_bag refuses values out of range, and names them", "[embedding_bag]") {
  const auto offsets = [](std::vector<int32_t> values) {
    return Tensor::from<int32_t>({static_cast<int64_t>(values.size())}, values);
  };
  const Tensor indices = Tensor::from<int32_t>({4}, {0, 1, 4, 9});
  REQUIRE_NOTHROW(look_up(indices, offsets({0, 1, 2})));
  REQUIRE_THROWS_WITH(look_up(indices, offsets({0, 1, 3})),
                      "embedding_bag: token 4 at position 2 is outside the vocabulary of 4");
  const Tensor known = Tensor::from<int32_t>({4}, {0, 1, 2, 3});
  REQUIRE_THROWS_WITH(look_up(known, offsets({-1, 1})),
                      "embedding_bag: offset -1 at position 0 is outside [0, 4]");
  REQUIRE_THROWS_WITH(look_up(known, offsets({0, -5})),
                      "embedding_bag: offset -5 at position 1 is outside [0, 4]");
  REQUIRE_THROWS_WITH(look_up(known, offsets({0, 2, 1})),
                      "embedding_bag: offset 1 at position 2 is outside [2, 4]");
  REQUIRE_THROWS_WITH(look_up(known, offsets({0, 5})),
                      "embedding_bag: offset 5 at position 1 is outside [0, 4]");
  REQUIRE_THROWS_WITH(look_up(known, offsets({5})),  // no bags
                      "embedding_bag: offset 5 at position 0 is outside [0, 4]");
}

}  // namespace
}  // namespace tessera::test
