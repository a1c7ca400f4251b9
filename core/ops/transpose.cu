// transpose on CUDA: y (..., n, m) = x (..., m, n). Tiles in shared memory are transposed, so that
// both the reads of x and the writes of y go along rows.
#include "core/cuda/kernel.cuh"
#include "core/ops/transpose.h"

namespace tessera::cuda {

namespace {

// A row of a tile is 128 bytes of 16-bit elements, or 256 bytes of f32. An f32 tile takes 17 KB of
// shared memory. At this size the number of threads, not shared memory, limits the number of blocks
// on a multiprocessor.
constexpr int tile = 64;
constexpr int row_threads = 32;
constexpr int rows_at_once = 8;

template <class T>
__global__ void __launch_bounds__(row_threads* rows_at_once)
    transpose_kernel(T* y, const T* x, int64_t m, int64_t n, unsigned tile_rows,
                     unsigned tile_columns) {
  // Rows are padded to an odd number of banks, so that a warp reading down a column accesses each
  // bank once.
  __shared__ T part[tile][tile + 4 / sizeof(T)];
  const int64_t matrix = blockIdx.x / tile_columns / tile_rows;
  const int64_t row = int64_t{blockIdx.x / tile_columns % tile_rows} * tile;
  const int64_t column = int64_t{blockIdx.x % tile_columns} * tile;
  const int across = static_cast<int>(threadIdx.x);
  const int down = static_cast<int>(threadIdx.y);
  x += matrix * m * n;
  y += matrix * m * n;
  for (int i = down; i < tile; i += rows_at_once) {
    for (int j = across; j < tile; j += row_threads) {
      if (row + i < m && column + j < n) part[i][j] = x[(row + i) * n + column + j];
    }
  }
  __syncthreads();
  for (int j = down; j < tile; j += rows_at_once) {
    for (int i = across; i < tile; i += row_threads) {
      if (row + i < m && column + j < n) y[(column + j) * m + row + i] = part[i][j];
    }
  }
}

}  // namespace

void transpose(const Context& context, const Tensor& y, const Tensor& x) {
  if (x.elements() == 0) return;
  const int64_t m = x.size(-2);
  const int64_t n = x.size(-1);
  const unsigned tile_rows = blocks_for(m, tile);
  const unsigned tile_columns = blocks_for(n, tile);
  const int64_t matrices = x.elements() / (m * n);
  visit_float(x.dtype(), "transpose", [&]<class T>() {
    launch(context, "transpose",
           {blocks_for(matrices * tile_rows * tile_columns, 1), dim3(row_threads, rows_at_once)},
           transpose_kernel<T>, y.data<T>(), x.data<T>(), m, n, tile_rows, tile_columns);
  });
}

}  // namespace tessera::cuda
