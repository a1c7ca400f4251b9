#include "core/table_ops.h"

#include <vector>

#include "core/autograd.h"
#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

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
  int64_t rows, per_row, table, channels;
};

TEST_CASE("row_products are inner products with rows of a table, and their squares",
          "[row_products]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const double tolerance = dtype == DType::f32 ? 1e-5 : 2e-2;
  for (const auto& [rows, per_row, table_rows, channels] :
       {Sizes{4, 1, 7, 3}, Sizes{5, 3, 2, 16}, Sizes{3, 70, 900, 33}, Sizes{1, 2, 1, 64},
        Sizes{130, 2, 40, 257}}) {
    for (const bool shared : {false, true}) {
      CAPTURE(rows, per_row, table_rows, channels, shared, dtype_name(dtype));
      const Tensor x = ops::convert(random_tensor({rows, channels}, 1), dtype);
      const Tensor table = ops::convert(random_tensor({table_rows, channels}, 2), dtype);
      const Tensor indices = indices_of({shared ? 1 : rows, per_row}, table_rows);
      const std::vector<double> left = doubles(x);
      const std::vector<double> right = doubles(table);
      std::vector<double> expected, squares;
      const auto index = [&](int64_t b, int64_t k) {
        return indices.values<int32_t>()[static_cast<size_t>((shared ? 0 : b * per_row) + k)];
      };
      for (int64_t b = 0; b < rows; ++b) {
        for (int64_t k = 0; k < per_row; ++k) {
          double sum = 0;
          double square = 0;
          for (int64_t c = 0; c < channels; ++c) {
            const double a = left[static_cast<size_t>(b * channels + c)];
            const double t = right[static_cast<size_t>(index(b, k) * channels + c)];
            sum += a * t;
            square += t * t;
          }
          expected.push_back(sum);
          if (b < indices.size(0)) squares.push_back(square);
        }
      }
      const auto result = ops::row_products(x, indices, table, true);
      CHECK(result.products.shape() == Shape{rows, per_row});
      CHECK(max_error(result.products, expected) < tolerance);
      CHECK(result.squares.dtype() == DType::f32);
      CHECK(max_error(result.squares, squares) < 1e-5);
      CHECK_FALSE(ops::row_products(x, indices, table).squares.defined());
    }
  }
}

TEST_CASE("gradients of row_products are those of lookups and products", "[row_products]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const double tolerance = dtype == DType::f32 ? 1e-5 : 4e-2;
  for (const auto& [rows, per_row, table_rows, channels] :
       {Sizes{4, 1, 7, 3}, Sizes{5, 3, 2, 16}, Sizes{3, 70, 90, 33}, Sizes{400, 1, 3, 40}}) {
    CAPTURE(rows, per_row, table_rows, channels, dtype_name(dtype));
    const Tensor indices = indices_of({rows, per_row}, table_rows);
    const Tensor weights = ops::convert(random_tensor({rows, per_row}, 3), dtype);
    const auto gradients = [&](const auto& products) {
      const Tensor x = leaf(ops::convert(random_tensor({rows, channels}, 1), dtype));
      const Tensor table = leaf(ops::convert(random_tensor({table_rows, channels}, 2), dtype));
      const auto [y, squares] = products(x, table);
      backward(ops::sum(y * weights) + 0.25f * ops::sum(squares));
      return std::vector{gradient_of(x), gradient_of(table)};
    };
    const auto composed = gradients([&](const Tensor& x, const Tensor& table) {
      const Tensor looked_up = ops::embedding(indices, table);
      const Tensor wide = ops::reshape(x, {rows, 1, channels});
      return std::pair{ops::sum(wide * looked_up, {-1}), ops::square(looked_up)};
    });
    const auto fused = gradients([&](const Tensor& x, const Tensor& table) {
      const auto result = ops::row_products(x, indices, table, true);
      return std::pair{result.products, result.squares};
    });
    for (const size_t i : {size_t{0}, size_t{1}}) {
      CHECK(max_error(fused[i], doubles(composed[i])) < tolerance);
    }
  }
}

TEST_CASE("row_products pass a check against finite differences", "[row_products]") {
  const Tensor indices = indices_of({4, 3}, 5);
  const auto products = [&](const std::vector<Tensor>& in) {
    const auto result = ops::row_products(in[0], indices, in[1], true);
    return result.products + result.squares;
  };
  CHECK(check_gradient(products, {random_tensor({4, 6}, 1), random_tensor({5, 6}, 2)}));
  // Of one result alone.
  const auto squares = [&](const std::vector<Tensor>& in) {
    return ops::row_products(in[0], indices, in[1], true).squares;
  };
  CHECK(check_gradient(squares, {random_tensor({4, 6}, 1), random_tensor({5, 6}, 2)}));
}

TEST_CASE("row_products have the same bits for any number of threads", "[row_products]") {
  const Tensor indices = indices_of({600, 5}, 41);
  CHECK(same_bits_for_any_threads([&] {
    const Tensor x = leaf(random_tensor({600, 70}, 1));
    const Tensor table = leaf(random_tensor({41, 70}, 2));
    const auto [y, squares] = ops::row_products(x, indices, table, true);
    backward(ops::sum(ops::square(y)) + ops::sum(squares));
    return std::vector{y, squares, gradient_of(x), gradient_of(table)};
  }));
}

TEST_CASE("row_products refuse what does not fit", "[row_products]") {
  const Tensor x = random_tensor({2, 3}, 1);
  const Tensor table = random_tensor({4, 3}, 2);
  const Tensor indices = indices_of({2, 5}, 4);
  CHECK_THROWS_WITH(ops::row_products(random_tensor({2, 4}, 1), indices, table),
                    Catch::Contains("x has shape [2, 4], expected [B, 3]"));
  CHECK_THROWS_WITH(ops::row_products(x, indices_of({3, 5}, 4), table),
                    Catch::Contains("expected i32 [2, K] or [1, K]"));
  CHECK_THROWS_WITH(ops::row_products(x, indices, ops::convert(table, DType::bf16)),
                    Catch::Contains("x has dtype f32, expected bf16"));
  CHECK_THROWS_WITH(ops::row_products(x, indices_of({1, 5}, 4), leaf(table)),
                    Catch::Contains("are shared by 2 rows"));
  if (!on_cpu()) return;
  indices.values<int32_t>()[7] = 4;
  CHECK_THROWS_WITH(ops::row_products(x, indices, table),
                    Catch::Contains("index 4 at position 7 is outside [0, 4)"));
}

}  // namespace
}  // namespace tessera::test
