#include "core/check_gradient.h"
#include "core/ops/matmul.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t batch, m, n, k;
  bool shared_b;
};

Values transposed(const Values& x, int64_t rows, int64_t columns) {
  Values y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      y[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
    }
  }
  return y;
}

Values matrix(const Tensor& x, int64_t index) {
  const int64_t size = x.size(-2) * x.size(-1);
  return values_of(x.view({x.elements()}).flat(index * size, (index + 1) * size));
}

TEST_CASE("matmul and its gradients equal float64 for all transposes") {
  const auto [batch, m, n, k, shared_b] =
      GENERATE(Case{1, 1, 1, 1, false}, Case{4, 3, 5, 7, false}, Case{4, 3, 5, 7, true},
               Case{2, 33, 17, 65, false}, Case{6, 9, 1, 2, true});
  const bool transpose_a = GENERATE(false, true);
  const bool transpose_b = GENERATE(false, true);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Shape matrix_a = transpose_a ? Shape{k, m} : Shape{m, k};
  const Shape matrix_b = transpose_b ? Shape{n, k} : Shape{k, n};
  const Tensor a = as_parameter(
      random_tensor_of(dtype, {2, batch / 2 + batch % 2, matrix_a[0], matrix_a[1]}, 1));
  const int64_t count = a.size(0) * a.size(1);
  const Shape shape_b =
      shared_b ? matrix_b : Shape{a.size(0), a.size(1), matrix_b[0], matrix_b[1]};
  const Tensor b = as_parameter(random_tensor_of(dtype, shape_b, 2));
  const Tensor y = ops::matmul(a, b, transpose_a, transpose_b);
  REQUIRE(y.shape() == Shape{a.size(0), a.size(1), m, n});
  const Tensor dy = random_tensor_of(dtype, y.shape(), 3);
  backward_from(y, dy);

  Values expected, da, db(static_cast<size_t>(b.elements()), 0.0);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t j = shared_b ? 0 : i;
    // The reference multiplies (m, k) by (k, n), so it first undoes the transposes of the operands.
    Values left = matrix(a, i), right = matrix(b, j);
    if (transpose_a) left = transposed(left, k, m);
    if (transpose_b) right = transposed(right, n, k);
    const Values grad = matrix(dy, i);
    const Values c = product(left, right, m, n, k);
    Values dleft = product(grad, right, m, k, n, false, true);
    Values dright = product(left, grad, k, n, m, true, false);
    if (transpose_a) dleft = transposed(dleft, m, k);
    if (transpose_b) dright = transposed(dright, k, n);
    expected.insert(expected.end(), c.begin(), c.end());
    da.insert(da.end(), dleft.begin(), dleft.end());
    for (int64_t e = 0; e < k * n; ++e) {
      db[static_cast<size_t>(j * k * n + e)] += dright[static_cast<size_t>(e)];
    }
  }
  // Each element is rounded only once, even in the gradient of a shared b, which is a sum over all
  // uses of b.
  CHECK(relative_error(y, expected) < tolerance(dtype));
  CHECK(relative_error(a.leaf()->gradient, da) < tolerance(dtype));
  CHECK(relative_error(b.leaf()->gradient, db) < tolerance(dtype));
}

struct BroadcastCase {
  Shape a, b, y;  // leading dimensions
};

/// Returns `leading`, followed by the dimensions of a matrix.
Shape with_matrix(Shape leading, int64_t rows, int64_t columns) {
  leading.push_back(rows);
  leading.push_back(columns);
  return leading;
}

/// Matrix `index` of a result with leading dimensions `y` is the product of one matrix of each
/// operand. For an operand with leading dimensions `shape`, returns the index of its matrix.
int64_t broadcast_index(const Shape& y, const Shape& shape, int64_t index) {
  int64_t result = 0, stride = 1;
  for (int dim = 1; dim <= y.rank(); ++dim) {
    const int64_t place = index % y[-dim];
    index /= y[-dim];
    if (dim > shape.rank()) continue;
    if (shape[-dim] > 1) result += place * stride;
    stride *= shape[-dim];
  }
  return result;
}

TEST_CASE("matmul broadcasts leading dimensions, and its gradients are summed over them") {
  const BroadcastCase c =
      GENERATE(BroadcastCase{{3}, {1}, {3}}, BroadcastCase{{1}, {3}, {3}},
               BroadcastCase{{}, {3}, {3}}, BroadcastCase{{2, 3}, {3}, {2, 3}},
               BroadcastCase{{2, 1}, {2, 3}, {2, 3}}, BroadcastCase{{2, 1}, {3}, {2, 3}},
               BroadcastCase{{1, 3}, {2, 1}, {2, 3}}, BroadcastCase{{2, 1, 3}, {4, 1}, {2, 4, 3}},
               BroadcastCase{{1, 3}, {3}, {1, 3}}, BroadcastCase{{2, 0}, {1}, {2, 0}});
  const bool transpose_a = GENERATE(false, true);
  const bool transpose_b = GENERATE(false, true);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t m = 5, n = 4, k = 6;
  const Tensor a = as_parameter(
      random_tensor_of(dtype, with_matrix(c.a, transpose_a ? k : m, transpose_a ? m : k), 1));
  const Tensor b = as_parameter(
      random_tensor_of(dtype, with_matrix(c.b, transpose_b ? n : k, transpose_b ? k : n), 2));
  const Tensor y = ops::matmul(a, b, transpose_a, transpose_b);
  REQUIRE(y.shape() == with_matrix(c.y, m, n));
  const Tensor dy = random_tensor_of(dtype, y.shape(), 3);
  backward_from(y, dy);

  Values expected;
  Values da(static_cast<size_t>(a.elements())), db(static_cast<size_t>(b.elements()));
  for (int64_t i = 0; i < c.y.elements(); ++i) {
    const int64_t at_a = broadcast_index(c.y, c.a, i), at_b = broadcast_index(c.y, c.b, i);
    Values left = matrix(a, at_a), right = matrix(b, at_b);
    if (transpose_a) left = transposed(left, k, m);
    if (transpose_b) right = transposed(right, n, k);
    const Values grad = matrix(dy, i), product_ = product(left, right, m, n, k);
    Values dleft = product(grad, right, m, k, n, false, true);
    Values dright = product(left, grad, k, n, m, true, false);
    if (transpose_a) dleft = transposed(dleft, m, k);
    if (transpose_b) dright = transposed(dright, k, n);
    expected.insert(expected.end(), product_.begin(), product_.end());
    for (int64_t e = 0; e < m * k; ++e) {
      da[static_cast<size_t>(at_a * m * k + e)] += dleft[static_cast<size_t>(e)];
    }
    for (int64_t e = 0; e < k * n; ++e) {
      db[static_cast<size_t>(at_b * k * n + e)] += dright[static_cast<size_t>(e)];
    }
  }
  // Gradients are rounded only once, even if they are sums over broadcast dimensions.
  CHECK(relative_error(y, expected) < tolerance(dtype));
  CHECK(relative_error(a.leaf()->gradient, da) < tolerance(dtype));
  CHECK(relative_error(b.leaf()->gradient, db) < tolerance(dtype));
}

TEST_CASE("matmul of broadcast operands passes the check of its gradients") {
  CHECK(check_gradient([](const auto& in) { return ops::matmul(in[0], in[1], true); },
                       {random_tensor({2, 1, 3, 4}, 1), random_tensor({3, 3, 2}, 2)}));
}

TEST_CASE("matmul of broadcast operands takes parameters gathered only while in use") {
  const GatheredParameter a(random_tensor({2, 1, 3, 4}, 1)), b(random_tensor({3, 4, 2}, 2));
  const Tensor plain_a = as_parameter(random_tensor({2, 1, 3, 4}, 1));
  const Tensor plain_b = as_parameter(random_tensor({3, 4, 2}, 2));
  const Tensor dy = random_tensor({2, 3, 3, 2}, 3);
  const Tensor y = ops::matmul(a.tensor, b.tensor), expected = ops::matmul(plain_a, plain_b);
  CHECK(same_bits(y, expected));
  backward_from(y, dy);
  backward_from(expected, dy);
  CHECK(same_bits(a.gradient(), plain_a.leaf()->gradient));
  CHECK(same_bits(b.gradient(), plain_b.leaf()->gradient));
}

TEST_CASE("matmul passes the check of its gradients") {
  const bool transpose_a = GENERATE(false, true);
  CHECK(check_gradient([&](const auto& in) { return ops::matmul(in[0], in[1], transpose_a, true); },
                       {random_tensor({2, 3, 3}, 1), random_tensor({2, 4, 3}, 2)}));
}

TEST_CASE("matmul sums in fp32, and adds the sum to a 16-bit destination once") {
  const DType dtype = GENERATE(from_range(half_dtypes()));
  const Tensor a = random_tensor_of(dtype, {33, 700}, 1), b = random_tensor_of(dtype, {700, 17}, 2);
  const Tensor sum = random_tensor_of(dtype, {33, 17}, 3, -9, 9);
  const Tensor wide = Tensor::empty({33, 17});
  const Context context = test_context();
  kernels::matmul(context, wide, a, b, MatmulArgs{});
  const std::vector<double> before = doubles(sum);
  for (size_t i = 0; i < before.size(); ++i) {
    wide.data<float>()[i] += static_cast<float>(before[i]);
  }
  kernels::matmul(context, sum, a, b, MatmulArgs{.accumulate = true});
  CHECK(same_bits(sum, rounded_to(dtype, wide)));
}

TEST_CASE("matmul neither reads nor writes the padding behind the rows of y and a") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const int64_t m = 9, n = 13, k = 21;
  const Tensor a = random_tensor_of(dtype, transpose_a ? Shape{k, m} : Shape{m, k}, 1);
  const Tensor b = random_tensor_of(dtype, transpose_b ? Shape{n, k} : Shape{k, n}, 2);
  const Tensor expected = ops::matmul(a, b, transpose_a, transpose_b);
  const Tensor y = padded(Tensor::zeros({m, n}, dtype), 64, 7);
  kernels::matmul(test_context(), y, padded(a, 64, std::nanf("")), b,
                  MatmulArgs{transpose_a, transpose_b, false});
  const auto [rows, behind] = without_padding(y, n);
  CHECK(relative_error(rows, values_of(expected)) < tolerance(dtype));
  CHECK(behind == Values(behind.size(), 7));
}

TEST_CASE("matmul's backward announces the operands that it reads") {
  const bool a_trains = GENERATE(false, true), b_trains = GENERATE(false, true);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  GatheredParameter a(random_tensor_of(dtype, {4, 3}, 1)), b(random_tensor_of(dtype, {3, 5}, 2));
  a.tensor.leaf()->trainable = a_trains;
  b.tensor.leaf()->trainable = b_trains;
  const Tensor y = ops::matmul(a.tensor, b.tensor);
  CHECK(a.uses == 1);
  CHECK(b.uses == 1);
  if (!a_trains && !b_trains) return;
  backward_from(y, random_tensor_of(dtype, {4, 5}, 3));
  CHECK(a.uses == (b_trains ? 2 : 1));
  CHECK(b.uses == (a_trains ? 2 : 1));
  CHECK(a.gradient().defined() == a_trains);
  CHECK(b.gradient().defined() == b_trains);
}

TEST_CASE("matmul of size zero") {
  const Tensor a = as_parameter(random_tensor({3, 0}, 1));
  const Tensor b = as_parameter(random_tensor({0, 2}, 2));
  const Tensor y = ops::matmul(a, b);
  CHECK(values_of(y) == Values(6, 0.0));
  backward_from(y, random_tensor({3, 2}, 3));
  CHECK(a.leaf()->gradient.shape() == Shape{3, 0});

  const Tensor none = as_parameter(random_tensor({0, 4, 3}, 1));
  const Tensor shared = as_parameter(random_tensor({4, 2}, 2));
  const Tensor empty = ops::matmul(none, shared, true);
  CHECK(empty.shape() == Shape{0, 3, 2});
  backward_from(empty, Tensor::empty({0, 3, 2}));
  CHECK(values_of(shared.leaf()->gradient) == Values(8, 0.0));
}

TEST_CASE("matmul of square matrices transposes only the operands that it should") {
  const Tensor a = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  const Tensor b = Tensor::from<float>({2, 2}, {5, 6, 7, 8});
  CHECK(values_of(ops::matmul(a, b)) == Values{19, 22, 43, 50});
  CHECK(values_of(ops::matmul(a, b, true)) == Values{26, 30, 38, 44});
  CHECK(values_of(ops::matmul(a, b, false, true)) == Values{17, 23, 39, 53});
  CHECK(values_of(ops::matmul(a, b, true, true)) == Values{23, 31, 34, 46});
}

TEST_CASE("matmul refuses shapes that do not fit, and names them") {
  using Catch::Matchers::ContainsSubstring;
  const auto tensor = [](const Shape& shape) { return Tensor::empty(shape); };
  CHECK_THROWS_WITH(
      ops::matmul(tensor({2, 3}), tensor({4, 5})),
      ContainsSubstring("matmul: shapes [2, 3] and [4, 5] have inner extents 3 and 4"));
  CHECK_THROWS_WITH(ops::matmul(tensor({3}), tensor({3, 5})), ContainsSubstring("two dimensions"));
  CHECK_THROWS_WITH(ops::matmul(tensor({2, 4, 3}), tensor({3, 3, 5})),
                    ContainsSubstring("matmul's leading dimensions: shapes [2] and [3] do not "
                                      "broadcast: dimension -1 has 2 and 3 elements"));
  CHECK_THROWS_WITH(ops::matmul(tensor({2, 3}), Tensor::empty({3, 5}, DType::i32)),
                    ContainsSubstring("matmul: b has dtype i32, expected f32"));
}

}  // namespace
}  // namespace tessera::test
