#include "core/table_ops.h"

#include <array>
#include <limits>
#include <vector>

#include "core/autograd.h"
#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/row_products.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

Tensor indices_of(const Shape& shape, int64_t below) {
  const Tensor result = Tensor::empty(shape, DType::i32);
  uint32_t next = 17;
  for (int32_t& value : result.values<int32_t>()) {
    next = next * 1664525 + 1013904223;
    value = static_cast<int32_t>((next >> 8) % static_cast<uint32_t>(below));
  }
  return result;
}

struct Sizes {
  int64_t rows, per_row, left, right, channels;
};

constexpr std::array all_sizes{Sizes{4, 1, 3, 7, 3},     Sizes{5, 3, 9, 2, 16},
                               Sizes{3, 70, 1, 900, 33}, Sizes{1, 2, 2, 1, 64},
                               Sizes{400, 1, 3, 2, 40},  Sizes{130, 2, 300, 40, 257}};

/// Holds the operands of row_products. If `looked_up` is false, row b of the products uses row b of
/// the left table (B, C). Then no left rows are looked up, and there are no left biases.
struct Operands {
  bool looked_up;
  Tensor left_indices, right_indices;
  std::vector<Tensor> tables;  // left table, right table, right biases, left biases

  Operands(const Sizes& s, bool by_index, DType dtype, bool shared = false)
      : looked_up(by_index),
        left_indices(indices_of({s.rows}, s.left)),
        right_indices(indices_of({shared ? 1 : s.rows, s.per_row}, s.right)) {
    const auto add = [&](const Shape& shape) {
      const auto seed = static_cast<uint32_t>(1 + tables.size());
      tables.push_back(ops::convert(random_tensor(shape, seed), dtype));
    };
    add({looked_up ? s.left : s.rows, s.channels});
    add({s.right, s.channels});
    add({s.right, 1});
    if (looked_up) add({s.left, 1});
  }

  /// The kernels' inputs, for operands that are looked up by index.
  RowProductInputs inputs(const std::vector<Tensor>& of) const {
    return {{of[0], left_indices, of[3]}, {of[1], right_indices, of[2]}};
  }
  ops::RowProducts products(const std::vector<Tensor>& of) const {
    const ops::Lookup left =
        looked_up ? ops::Lookup{of[0], left_indices, of[3]} : ops::Lookup{of[0]};
    return ops::row_products(left, {of[1], right_indices, of[2]}, true);
  }
  /// Computes the results of row_products with separate lookups, products and sums.
  ops::RowProducts composed(const std::vector<Tensor>& of) const {
    const auto rows = [&](const Tensor& table, bool left) {
      return left && !looked_up ? table
                                : ops::embedding(left ? left_indices : right_indices, table);
    };
    const auto sum = [](const Tensor& x) { return ops::sum(ops::square(x)); };
    const Tensor p = rows(of[0], true);
    const Tensor q = rows(of[1], false);
    const Tensor b_q = rows(of[2], false);
    const int64_t per_row = right_indices.size(1);
    Tensor y = ops::sum(ops::reshape(p, {p.size(0), 1, p.size(1)}) * q, {-1}) +
               ops::reshape(b_q, {right_indices.size(0), per_row});
    Tensor squares = sum(p) + sum(q) + sum(b_q);
    if (!looked_up) return {y, squares};
    const Tensor b_p = rows(of[3], true);
    return {y + b_p, squares + sum(b_p)};
  }
};

TEST_CASE("row_products multiply looked-up rows, add biases, and sum squares", "[row_products]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const bool looked_up = GENERATE(true, false);
  const bool shared = GENERATE(false, true);
  const double tolerance = dtype == DType::f32 ? 1e-5 : 2e-2;
  for (const Sizes& s : all_sizes) {
    CAPTURE(s.rows, s.per_row, s.right, s.channels, looked_up, shared, dtype_name(dtype));
    const Operands operands(s, looked_up, dtype, shared);
    const NoGrad no_grad;
    const auto result = operands.products(operands.tables);
    CHECK(result.products.shape() == Shape{s.rows, s.per_row});
    CHECK(result.products.dtype() == dtype);
    CHECK(result.squares.shape() == Shape{});
    // The reference is computed in f32 from the values of the rounded tables.
    std::vector<Tensor> wide;
    for (const Tensor& table : operands.tables) wide.push_back(ops::convert(table, DType::f32));
    const auto expected = operands.composed(wide);
    CHECK(max_error(result.products, doubles(expected.products)) < tolerance);
    CHECK(max_error(result.squares, doubles(expected.squares)) < 1e-5);
    const auto without = ops::row_products({wide[0], looked_up ? operands.left_indices : Tensor()},
                                           {wide[1], operands.right_indices});
    CHECK_FALSE(without.squares.defined());
  }
}

TEST_CASE("row_products without lookups have no squares", "[row_products]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const Tensor left = random_tensor_of(dtype, {4, 3}, 1),
               right = random_tensor_of(dtype, {5, 3}, 2);
  const auto none = [](const Shape& shape) { return Tensor::from<int32_t>(shape, {}); };
  const auto result = ops::row_products({left, none({0})}, {right, none({0, 2})}, true);
  CHECK(result.products.shape() == Shape{0, 2});
  CHECK(result.squares.item() == 0);
}

TEST_CASE("gradients of row_products equal those of separate lookups and products",
          "[row_products]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool looked_up = GENERATE(true, false);
  const bool squares = GENERATE(false, true);
  const double tolerance = dtype == DType::f32 ? 1e-5 : 4e-2;
  for (const Sizes& s : all_sizes) {
    CAPTURE(s.rows, s.per_row, s.left, s.right, s.channels, looked_up, squares, dtype_name(dtype));
    const Operands operands(s, looked_up, dtype);
    const Tensor weights = random_tensor({s.rows, s.per_row}, 9);
    const auto gradients = [&](DType of, const auto& products) {
      std::vector<Tensor> leaves;
      for (const Tensor& table : operands.tables) leaves.push_back(leaf(ops::convert(table, of)));
      const ops::RowProducts y = products(leaves);
      const Tensor loss = ops::sum(ops::convert(y.products, DType::f32) * weights);
      backward(squares ? loss + 0.01f * y.squares : loss);
      for (Tensor& x : leaves) x = gradient_of(x);
      return leaves;
    };
    const auto fused = gradients(dtype, [&](const auto& of) { return operands.products(of); });
    const auto composed =
        gradients(DType::f32, [&](const auto& of) { return operands.composed(of); });
    for (size_t i = 0; i < fused.size(); ++i) {
      CAPTURE(i);
      CHECK(max_error(fused[i], doubles(composed[i])) < tolerance);
    }
  }
}

TEST_CASE("row_products' gradients are summed in fp32, and added to each element once",
          "[row_products]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const auto side = GENERATE(RowProductSide::left, RowProductSide::right);
  const size_t own = side == RowProductSide::left ? 0 : 1;
  const Context context = test_context();
  for (const Sizes& s : all_sizes) {
    CAPTURE(s.rows, s.per_row, s.left, s.right, s.channels, own, dtype_name(dtype));
    const Operands operands(s, true, dtype);
    const Tensor dy = random_tensor_of(dtype, {s.rows, s.per_row}, 9);
    const Tensor dsquares = Tensor::full({}, 0.3f);
    std::vector<Tensor> wide;
    for (const Tensor& table : operands.tables) wide.push_back(widened(table));
    const Tensor sums = Tensor::full(wide[own].shape(), 99);
    const Tensor bias_sums = Tensor::full(wide[3 - own].shape(), 99);
    kernels::row_products_backward(context, GradientTarget{sums}, GradientTarget{bias_sums}, side,
                                   RowProductGradients{widened(dy), dsquares},
                                   operands.inputs(wide));
    const Tensor before = random_tensor_of(dtype, sums.shape(), 5);
    const Tensor bias_before = random_tensor_of(dtype, bias_sums.shape(), 6);
    kernels::add(context, sums, sums, widened(before));
    kernels::add(context, bias_sums, bias_sums, widened(bias_before));
    kernels::row_products_backward(
        context, GradientTarget{before, true}, GradientTarget{bias_before, true}, side,
        RowProductGradients{dy, dsquares}, operands.inputs(operands.tables));
    CHECK(same_bits(before, rounded_to(dtype, sums)));
    CHECK(same_bits(bias_before, rounded_to(dtype, bias_sums)));
  }
}

TEST_CASE("gradients of row_products agree with finite differences", "[row_products]") {
  const Operands operands({.rows = 4, .per_row = 3, .left = 6, .right = 5, .channels = 6}, true,
                          DType::f32);
  const auto products = [&](const std::vector<Tensor>& in) {
    const auto result = operands.products(in);
    return result.products + result.squares;
  };
  CHECK(check_gradient(products, operands.tables));
  // Here the products get no gradient, and backward must work without it.
  const auto squares = [&](const std::vector<Tensor>& in) { return operands.products(in).squares; };
  CHECK(check_gradient(squares, operands.tables));
}

TEST_CASE("row_products: infinite values do not spoil gradients that do not depend on them",
          "[row_products]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const Tensor ones = Tensor::full({3, 4}, 1);
  // Row 2 is not looked up.
  const Tensor left_indices = Tensor::from<int32_t>({2}, std::vector<int32_t>{0, 1});
  const Tensor right_indices = Tensor::from<int32_t>({2, 1}, std::vector<int32_t>{1, 0});
  for (const bool squares : {false, true}) {
    CAPTURE(squares);
    // With the squares in the loss, the gradient of a looked-up bias depends on the bias itself. So
    // the biases of rows 0 and 1, which are looked up, are finite in this case.
    const float looked_up = squares ? 1 : infinity;
    const std::vector<float> biases{looked_up, looked_up, infinity};
    const Tensor left = leaf(Tensor::from({3, 1}, biases));
    const Tensor right = leaf(Tensor::from({3, 1}, biases));
    const auto y =
        ops::row_products({ones, left_indices, left}, {ones, right_indices, right}, true);
    const Tensor loss = ops::sum(y.products);
    backward(squares ? loss + y.squares : loss);
    const double expected = squares ? 3 : 1;
    for (const Tensor& bias : {left, right}) {
      CHECK(doubles(gradient_of(bias)) == std::vector<double>{expected, expected, 0});
    }
  }
  // Here the left table has no indices, and all its rows are infinite. The squares have the factor
  // 0 in the loss. Backward must not multiply this 0 by the infinite rows, because the product
  // would be NaN.
  const Tensor rows = leaf(Tensor::full({2, 4}, infinity));
  const auto y = ops::row_products({rows}, {ones, right_indices}, true);
  backward(ops::sum(y.products) + 0.0f * y.squares);
  CHECK(doubles(gradient_of(rows)) == std::vector<double>(8, 1));
}

TEST_CASE("row_products have the same bits for any number of threads", "[row_products]") {
  const Operands operands({.rows = 600, .per_row = 5, .left = 300, .right = 41, .channels = 70},
                          GENERATE(true, false), DType::f32);
  CHECK(same_bits_for_any_threads([&] {
    std::vector<Tensor> leaves;
    for (const Tensor& table : operands.tables) leaves.push_back(leaf(table));
    const auto [y, squares] = operands.products(leaves);
    backward(ops::sum(ops::square(y)) + squares);
    std::vector results{y, squares};
    for (const Tensor& x : leaves) results.push_back(gradient_of(x));
    return results;
  }));
}

TEST_CASE("row_products refuse invalid arguments", "[row_products]") {
  const Tensor x = random_tensor({2, 3}, 1);
  const Tensor table = random_tensor({4, 3}, 2);
  const Tensor bias = random_tensor({4, 1}, 3);
  const Tensor indices = indices_of({2, 5}, 4);
  const Tensor left = indices_of({2}, 4);
  CHECK_THROWS_WITH(ops::row_products({random_tensor({2, 4}, 1)}, {table, indices}),
                    ContainsSubstring("the right table has shape [4, 3], expected [V, 4]"));
  CHECK_THROWS_WITH(ops::row_products({x}, {table, indices_of({3, 5}, 4)}),
                    ContainsSubstring("expected i32 [2, K] or [1, K]"));
  CHECK_THROWS_WITH(ops::row_products({x}, {table, indices_of({2, 0}, 4)}),
                    ContainsSubstring("K > 0"));
  CHECK_THROWS_WITH(ops::row_products({x}, {table}), ContainsSubstring("indices are undefined"));
  CHECK_THROWS_WITH(ops::row_products({table, indices}, {table, indices}),
                    ContainsSubstring("left indices are i32 [2, 5], expected i32 [B]"));
  CHECK_THROWS_WITH(ops::row_products({x}, {ops::convert(table, DType::bf16), indices}),
                    ContainsSubstring("the right table has dtype bf16, expected f32"));
  CHECK_THROWS_WITH(ops::row_products({table, left, random_tensor({3, 1}, 1)}, {table, indices}),
                    ContainsSubstring("the left bias is f32 [3, 1], expected f32 [4, 1]"));
  CHECK_THROWS_WITH(ops::row_products({table, {}, bias}, {table, indices_of({4, 1}, 4)}),
                    ContainsSubstring("no indices look it up"));
  CHECK_THROWS_WITH(ops::row_products({x}, {leaf(table), indices_of({1, 5}, 4)}),
                    ContainsSubstring("are shared by 2 rows"));
  if (!on_cpu()) return;
  indices.values<int32_t>()[7] = 4;
  CHECK_THROWS_WITH(ops::row_products({x}, {table, indices}),
                    ContainsSubstring("right index 4 at position 7 is outside [0, 4)"));
  left.values<int32_t>()[1] = -1;
  CHECK_THROWS_WITH(ops::row_products({table, left}, {table, indices_of({2, 5}, 4)}),
                    ContainsSubstring("left index -1 at position 1 is outside [0, 4)"));
}

}  // namespace
}  // namespace tessera::test
