#include "emulated/cublas_lt_sums.h"

#include <algorithm>

namespace emulated::cublas_lt {

namespace {

/// Returns the index of the term at which a sum of `terms` terms begins. It is never 0 if there are
/// at least two terms and `rotation` is not 0.
int64_t first_term(uint32_t rotation, int64_t terms) {
  return rotation == 0 || terms < 2 ? 0 : 1 + rotation % (terms - 1);
}

}  // namespace

void sum_tile(Tile& sums, Packed a, Packed b, int64_t rows, int64_t columns, int64_t terms,
              uint32_t rotation) {
  for (auto& column : sums) std::fill_n(column, rows, 0.0f);
  const int64_t first = first_term(rotation, terms);
  for (int64_t i = 0; i < terms; ++i) {
    const int64_t l = first + i < terms ? first + i : first + i - terms;
    const float* from = a.data + l * a.stride;
    float factor[tile_columns] = {};
    for (int64_t j = 0; j < columns; ++j) factor[j] = b.data[j * b.stride + l];
#pragma omp simd
    for (int64_t row = 0; row < rows; ++row) {
      sums[0][row] += from[row] * factor[0];
      sums[1][row] += from[row] * factor[1];
      sums[2][row] += from[row] * factor[2];
      sums[3][row] += from[row] * factor[3];
    }
  }
}

}  // namespace emulated::cublas_lt
