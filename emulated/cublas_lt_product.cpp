// The arithmetic of the emulated cuBLASLt, except the sums of tiles (cublas_lt_sums.cpp).
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/half.h"
#include "emulated/cublas_lt.h"
#include "emulated/cublas_lt_sums.h"

namespace emulated::cublas_lt {

using tessera::BFloat16;
using tessera::Float16;
using tessera::rounded;

namespace {

template <class Body>
void with_type(cudaDataType_t type, Body&& body) {
  switch (type) {
    case CUDA_R_32F: return body.template operator()<float>();
    case CUDA_R_16BF: return body.template operator()<BFloat16>();
    case CUDA_R_16F: return body.template operator()<Float16>();
  }
}

/// Returns op(x) of one matrix in f32, packed column after column.
std::vector<float> widened(const void* data, const Layout& x, int64_t matrix, int32_t operation) {
  std::vector<float> result(static_cast<size_t>(x.rows * x.columns));
  with_type(x.type, [&]<class T>() {
    const T* from = static_cast<const T*>(data) + matrix * x.batch_stride;
    for (int64_t column = 0; column < x.columns; ++column) {
      const T* in = from + column * x.stride;
      if (operation == CUBLAS_OP_T) {
        float* out = result.data() + column;
        for (int64_t row = 0; row < x.rows; ++row) out[row * x.columns] = float(in[row]);
      } else {
        float* out = result.data() + column * x.rows;
#pragma omp simd
        for (int64_t row = 0; row < x.rows; ++row) out[row] = float(in[row]);
      }
    }
  });
  return result;
}

/// Like sum_tile, but divides the terms into parts of `part_terms`, computes the sum of each part
/// with sum_tile, and adds these sums in order.
void sum_parts(Tile& sums, Packed a, Packed b, int64_t rows, int64_t columns, int64_t terms,
               int64_t part_terms, uint32_t rotation) {
  sum_tile(sums, a, b, rows, columns, std::min(part_terms, terms), rotation);
  for (int64_t begin = part_terms; begin < terms; begin += part_terms) {
    Tile part;
    sum_tile(part, {a.data + begin * a.stride, a.stride}, {b.data + begin, b.stride}, rows,
             columns, std::min(part_terms, terms - begin), rotation);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) sums[j][i] += part[j][i];
    }
  }
}

/// Consecutive elements of one column of D. finish() computes these elements from their sums.
template <class T>
struct Column {
  const T* c;     // null if beta is 0
  const T* bias;  // null if there is none
  T* d;
  float alpha, beta;

  void finish(const float* sums, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) {
      float value = alpha * sums[i];
      if (c) value += beta * float(c[i]);
      if (bias) value += float(bias[i]);
      d[i] = rounded<T>(value);
    }
  }
};

template <class T>
Column<T> column_of(const Problem& problem, const Addresses& addresses, int64_t matrix,
                    int64_t row, int64_t column, float alpha, float beta) {
  const auto element = [&](const Layout& x) {
    return matrix * x.batch_stride + column * x.stride + row;
  };
  const Operation& operation = problem.operation;
  return {
      .c = beta == 0.0f ? nullptr : static_cast<const T*>(addresses.c) + element(problem.c),
      .bias = operation.adds_bias() ? static_cast<const T*>(operation.bias) + row : nullptr,
      .d = static_cast<T*>(addresses.d) + element(problem.d),
      .alpha = alpha,
      .beta = beta,
  };
}

}  // namespace

void compute(const Problem& problem, const Addresses& addresses, Order order, float alpha,
             float beta) {
  const int64_t m = problem.m, n = problem.n, k = problem.k;
  const int64_t part_terms = std::min(most_terms, (k + order.splits - 1) / order.splits);
  const Operation& operation = problem.operation;
  Tile sums;
  for (int64_t matrix = 0; matrix < problem.d.batch; ++matrix) {
    const auto a = widened(addresses.a, problem.a, matrix, operation.transpose_a);
    const auto b = widened(addresses.b, problem.b, matrix, operation.transpose_b);
    for (int64_t row = 0; row < m; row += tile_rows) {
      const int64_t rows = std::min(tile_rows, m - row);
      for (int64_t column = 0; column < n; column += tile_columns) {
        const int64_t columns = std::min(tile_columns, n - column);
        sum_parts(sums, {a.data() + row, m}, {b.data() + column * k, k}, rows, columns, k,
                  part_terms, order.rotation);
        with_type(problem.d.type, [&]<class T>() {
          for (int64_t j = 0; j < columns; ++j) {
            column_of<T>(problem, addresses, matrix, row, column + j, alpha, beta)
                .finish(sums[j], rows);
          }
        });
      }
    }
  }
}

}  // namespace emulated::cublas_lt
