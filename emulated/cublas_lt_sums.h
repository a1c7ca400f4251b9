// The sums of a tile of an emulated product. For speed, builds with sanitizers compile
// cublas_lt_sums.cpp without sanitizers. The file accesses only the emulator's own arrays, and not
// device memory.
#pragma once

#include <cstdint>

namespace emulated::cublas_lt {

// The sums of a tile fit into the first-level cache. Each element of A is read once for all columns
// of a tile. Long sums are added in parts, as on a GPU that splits k: the error of one f32 sum over
// 100,000 terms would exceed the tolerance of the tests.
constexpr int64_t tile_rows = 512;
constexpr int64_t tile_columns = 4;
constexpr int64_t most_terms = 4096;  // per part
using Tile = float[tile_columns][tile_rows];

/// A submatrix of a matrix that is stored column after column, without gaps. The columns of the
/// submatrix begin `stride` elements apart.
struct Packed {
  const float* data;
  int64_t stride;
};

/// Computes sums = a (rows, terms) b (terms, columns). If `rotation` is not 0 and there are at
/// least two terms, each sum begins at a later term than the first. After the last term, the sum
/// adds the terms that it has skipped.
void sum_tile(Tile& sums, Packed a, Packed b, int64_t rows, int64_t columns, int64_t terms,
              uint32_t rotation);

}  // namespace emulated::cublas_lt
