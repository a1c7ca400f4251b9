// Compares results and gradients of index_select, gather and scatter_add with plain loops. Bits
// must not depend on threads.
#include <cstdint>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  Shape shape;
  int dim;
  int64_t count;

  /// outer() and inner() are the products of the sizes before and after dimension `dim`.
  int64_t outer() const {
    int64_t product = 1;
    for (int d = 0; d < at(); ++d) product *= shape[d];
    return product;
  }
  int64_t inner() const {
    int64_t product = 1;
    for (int d = at() + 1; d < shape.rank(); ++d) product *= shape[d];
    return product;
  }
  int at() const { return dim < 0 ? dim + shape.rank() : dim; }
  int64_t size() const { return shape[dim]; }
  Shape picked() const {
    Shape result;
    for (int d = 0; d < shape.rank(); ++d) result.push_back(d == at() ? count : shape[d]);
    return result;
  }
};

Case any_case() {
  return GENERATE(Case{{1}, 0, 1}, Case{{7}, -1, 20}, Case{{5, 3}, 0, 9}, Case{{3, 5}, 1, 4},
                  Case{{3, 5}, -1, 11}, Case{{2, 4, 3}, 1, 6}, Case{{2, 3, 2, 5, 3}, -2, 7},
                  Case{{40, 33}, 0, 70}, Case{{65, 9, 31}, 1, 13}, Case{{4, 3}, 0, 0},
                  Case{{0, 3}, 1, 2}, Case{{3, 0}, 0, 2});
}

/// Calls body(element, chosen) for each element of y: the result of gather or index_select, or the
/// source of scatter_add. `element` is the element's flat index in y. `chosen` is the flat index in
/// x of the element that `index` picks for it. x has the shape c.shape, and y has the shape
/// c.picked(). `index` has one dimension for index_select, and otherwise the shape of y.
template <class Body>
void each_picked(const Case& c, const Tensor& index, const Body& body) {
  const bool shared = index.rank() == 1 && c.shape.rank() > 1;
  const int32_t* at = index.data<int32_t>();
  for (int64_t o = 0; o < c.outer(); ++o) {
    for (int64_t j = 0; j < c.count; ++j) {
      for (int64_t i = 0; i < c.inner(); ++i) {
        const int64_t element = (o * c.count + j) * c.inner() + i;
        const int64_t picked = at[shared ? j : element];
        body(static_cast<size_t>(element),
             static_cast<size_t>((o * c.size() + picked) * c.inner() + i));
      }
    }
  }
}

TEST_CASE("gather and index_select pick elements, and their gradients add up", "[gather]") {
  const Case c = any_case();
  const bool select = GENERATE(true, false);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = as_parameter(random_tensor_of(dtype, c.shape, 1));
  const Tensor index = random_indices(select ? Shape{c.count} : c.picked(), 2, c.size());
  const Tensor y = select ? ops::index_select(x, c.dim, index) : ops::gather(x, c.dim, index);
  REQUIRE(y.shape() == c.picked());
  const Tensor dy = random_tensor_of(dtype, y.shape(), 3);
  backward_from(y, dy);
  const Values in = values_of(x), grad = values_of(dy);
  Values expected(static_cast<size_t>(y.elements())), dx(in.size());
  each_picked(c, index, [&](size_t element, size_t from) {
    expected[element] = in[from];
    dx[from] += grad[element];
  });
  CHECK(values_of(y) == expected);
  CHECK(relative_error(x.leaf()->gradient, dx) < tolerance(dtype));
}

// embedding_backward adds up the gradients of picked rows of at most 2^20 elements. Longer rows
// could exceed its CUDA grid, so scatter_lines adds up their gradients.
TEST_CASE("the gradients of picked rows of more than a million elements add up", "[gather][cpu]") {
  constexpr int64_t columns = (int64_t{1} << 20) + 1;
  const Tensor x = as_parameter(Tensor::zeros({2, columns}));
  const Tensor index = Tensor::from<int32_t>({2}, {1, 1});
  const Tensor dy = random_tensor({2, columns}, 1);
  backward_from(ops::index_select(x, 0, index), dy);
  const auto grad = dy.values<float>();
  const auto dx = x.leaf()->gradient.values<float>();
  int64_t wrong = 0;
  for (size_t i = 0; i < columns; ++i) {
    wrong += dx[i] != 0 || dx[columns + i] != grad[i] + grad[columns + i] ? 1 : 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("scatter_add adds in f32 and in order, and rounds once", "[gather]") {
  const Case c = any_case();
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = as_parameter(random_tensor_of(dtype, c.shape, 1));
  const Tensor source = as_parameter(random_tensor_of(dtype, c.picked(), 2));
  const Tensor index = random_indices(c.picked(), 3, c.size());
  const Tensor y = ops::scatter_add(x, c.dim, index, source);
  const Tensor dy = random_tensor_of(dtype, c.shape, 4);
  backward_from(y, dy);
  const Tensor sum = widened(x), wide = widened(source);
  const Values grad = values_of(dy);
  Values dsource(static_cast<size_t>(source.elements()));
  each_picked(c, index, [&](size_t element, size_t to) {
    sum.data<float>()[to] += wide.data<float>()[element];
    dsource[element] = grad[to];
  });
  CHECK(same_bits(y.detach(), rounded_to(dtype, sum)));
  CHECK(values_of(x.leaf()->gradient) == grad);
  CHECK(values_of(source.leaf()->gradient) == dsource);
}

TEST_CASE("gather, index_select and scatter_add pass the check of gradients", "[gather]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())), .roundings = 4};
  const int dim = GENERATE(0, 1, -1);
  const Case c{{2, 3, 2}, dim, 4};
  const Tensor index = random_indices(c.picked(), 1, c.size());
  const Tensor few = random_indices({5}, 2, c.size());
  const Tensor x = random_tensor(c.shape, 3), source = random_tensor(c.picked(), 4);
  CHECK(
      check_gradient([&](const auto& in) { return ops::gather(in[0], dim, index); }, {x}, options));
  CHECK(check_gradient([&](const auto& in) { return ops::index_select(in[0], dim, few); }, {x},
                       options));
  CHECK(check_gradient([&](const auto& in) { return ops::scatter_add(in[0], dim, index, in[1]); },
                       {x, source}, options));
}

TEST_CASE("gather's and scatter_add's bits do not depend on the number of threads", "[gather]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case c = GENERATE(Case{{70, 90}, 0, 600}, Case{{50, 7, 30}, 1, 90}, Case{{90, 60}, 1, 80});
  const Tensor index = random_indices(c.picked(), 1, c.size());
  const Tensor few = random_indices({c.count}, 2, c.size());
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor x = leaf(random_tensor_of(dtype, c.shape, 3));
    const Tensor source = leaf(random_tensor_of(dtype, c.picked(), 4));
    const Tensor y = ops::gather(ops::scatter_add(x, c.dim, index, source), c.dim, index);
    const Tensor z = ops::index_select(x, c.dim, few);
    backward(ops::sum(ops::mul(y, ops::add(y, z))));
    return std::vector{y.detach(), z.detach(), gradient_of(x), gradient_of(source)};
  }));
}

TEST_CASE("scatter_add's workspace is an f32 copy of the result for 16-bit types", "[gather]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {5, 7}, 1), source = random_tensor_of(dtype, {5, 3}, 2);
  MemoryLedger& ledger = memory_ledger(default_device());
  const int64_t before = ledger.current(Category::workspace);
  ledger.reset_peaks();
  ops::scatter_add(x, 1, random_indices({5, 3}, 3, 7), source);
  const int64_t added = ledger.peak(Category::workspace) - before;
  CHECK(added == (dtype == DType::f32 ? 0 : 5 * 7 * 4));
}

TEST_CASE("gather, index_select and scatter_add refuse invalid arguments", "[gather]") {
  const Tensor x = random_tensor({3, 4}, 1);
  const Tensor index = Tensor::from<int32_t>({3, 2}, {0, 1, 2, 3, 4, 0});
  REQUIRE_THROWS_WITH(ops::gather(x, 1, index), "gather: index 4 at position 4 is outside [0, 4)");
  REQUIRE_THROWS_WITH(ops::scatter_add(x, 1, index, random_tensor({3, 2}, 2)),
                      "scatter_add: index 4 at position 4 is outside [0, 4)");
  const Tensor few = Tensor::from<int32_t>({2}, {1, -1});
  REQUIRE_THROWS_WITH(ops::index_select(x, 0, few),
                      "index_select: index -1 at position 1 is outside [0, 3)");
  REQUIRE_THROWS_WITH(ops::gather(x, 2, index), "gather: there is no dimension 2 in shape [3, 4]");
  REQUIRE_THROWS_WITH(ops::gather(x, 0, index),
                      "gather: index has shape [3, 2], expected [3, 4] except in dimension 0");
  REQUIRE_THROWS_WITH(ops::gather(x, 1, random_tensor({3, 1}, 1)),
                      "gather: index has dtype f32, expected i32");
  REQUIRE_THROWS_WITH(ops::index_select(x, 1, index),
                      "index_select: index has shape [3, 2], expected (n)");
  REQUIRE_THROWS_WITH(ops::index_select(index, 0, Tensor::from<int32_t>({1}, {0})),
                      "index_select: dtype i32 is not supported, expected f32, bf16 or f16");
  index.data<int32_t>()[4] = 0;
  REQUIRE_THROWS_WITH(ops::scatter_add(x, 1, index, random_tensor({3, 3}, 1)),
                      "scatter_add: source has shape [3, 3], expected [3, 2], the shape of index");
  REQUIRE_THROWS_WITH(ops::scatter_add(x, 1, index, random_tensor_of(DType::bf16, {3, 2}, 1)),
                      "scatter_add: source has dtype bf16, expected f32");
}

TEST_CASE("an error in the gradient of picked rows names the operation that picked", "[gather]") {
  // A table without columns takes no memory, so it can have more rows than the gradient allows.
  const Tensor rows = as_parameter(Tensor::empty({INT32_MAX, 0}));
  const Tensor loss = ops::sum(ops::index_select(rows, 0, random_indices({1}, 1, 5)));
  REQUIRE_THROWS_WITH(backward(loss),
                      "index_select: 2147483648 positions and rows of the table together, expected "
                      "less than 2147483647");
}

}  // namespace
}  // namespace tessera::test
