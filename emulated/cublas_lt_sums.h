// The sums of a tile of an emulated product. Builds with sanitizers compile cublas_lt_sums.cpp
// without them: it only touches arrays of the emulator whose sizes compute() has derived.
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

/// Part of a packed matrix. The columns are `stride` elements apart.
struct Packed {
  const float* data;
  int64_t stride;
};

/// Computes sums = a (rows, terms) b (terms, columns). With a rotation, the sum of each element
/// begins at a later term, and the terms before that one follow the last one.
void sum_tile(Tile& sums, Packed a, Packed b, int64_t rows, int64_t columns, int64_t terms,
              uint32_t rotation);

}  // namespace emulated::cublas_lt
