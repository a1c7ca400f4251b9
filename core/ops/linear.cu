// The gradient of linear's bias on CUDA. cuBLASLt computes the products and adds the bias.
//
// A separate kernel computes the gradient of the bias. The product that computes the gradient of
// the weight could do this too, in an epilogue, but this product is left out if the weight is
// frozen. With the separate kernel, the gradient of the bias has the same bits whether or not the
// weight is frozen. The kernel also adds in a known order and rounds once. It costs one more read
// of g (linear.h), which is little compared with the products.
#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/ops/linear.h"

namespace tessera::cuda {

namespace {

/// Sums each column of x (R, C) over chunks of `chunk` rows. Row k of sums (chunks, C) has the sums
/// over rows [k * chunk, (k + 1) * chunk). A block sums 32 * width columns of one chunk. Thread
/// (i, j) sums rows j, j + lanes, ... of the chunk, in `width` columns. Then the threads' sums are
/// added in order of j. `width` changes the memory accesses, not the order of addition.
template <class T, class Sum, int width, int lanes>
__global__ void column_sums_kernel(Sum* sums, const T* x, int64_t rows, int64_t columns,
                                   int64_t chunk) {
  constexpr int block_columns = warp_size * width;
  __shared__ float parts[lanes][block_columns];
  const int lane = static_cast<int>(threadIdx.y);
  const int64_t tiles = (columns + block_columns - 1) / block_columns;
  const int64_t chunk_index = blockIdx.x / tiles;
  const int64_t tile = blockIdx.x % tiles * block_columns;
  const int64_t column = tile + static_cast<int64_t>(threadIdx.x) * width;
  const int64_t begin = chunk_index * chunk;
  const int64_t end = begin + chunk < rows ? begin + chunk : rows;
  float part[width] = {};
  if (column < columns) {
    for (int64_t row = begin + lane; row < end; row += lanes) {
      const T* from = x + row * columns + column;
      if constexpr (width == 1) {
        part[0] += float(*from);
      } else {
        const auto pack = *reinterpret_cast<const Pack<T>*>(from);
        for (int i = 0; i < width; ++i) part[i] += float(pack.value[i]);
      }
    }
  }
  for (int i = 0; i < width; ++i) parts[lane][threadIdx.x * width + i] = part[i];
  __syncthreads();
  const int thread = lane * warp_size + static_cast<int>(threadIdx.x);
  for (int i = thread; i < block_columns && tile + i < columns; i += lanes * warp_size) {
    float total = parts[0][i];
    for (int j = 1; j < lanes; ++j) total += parts[j][i];
    sums[chunk_index * columns + tile + i] = rounded<Sum>(total);
  }
}

template <class T, class Sum, int width, int lanes>
void launch_column_sums(const Context& context, Sum* sums, const T* x, int64_t rows,
                        int64_t columns, int64_t chunk) {
  const int64_t tiles = (columns + warp_size * width - 1) / (warp_size * width);
  const int64_t chunks = std::max<int64_t>(1, (rows + chunk - 1) / chunk);
  launch(context, "linear: column sums",
         {.grid = blocks_for(chunks * tiles, 1), .block = dim3(warp_size, lanes)},
         column_sums_kernel<T, Sum, width, lanes>, sums, x, rows, columns, chunk);
}

// Number of rows that a block sums in the first pass, eight per thread. The first pass then has
// enough blocks to keep a GPU busy, and the second pass reads little. For 16,384 rows of 768
// channels (GPT-2) in 16 bits, the first pass has 768 blocks. The second pass reads 3 % as many
// bytes as the first.
constexpr int64_t first_pass_rows = 64;

/// Computes the first pass: sums (chunks, C) over chunks of first_pass_rows rows of x (R, C).
template <class T, class Sum>
void first_column_sums(const Context& context, Sum* sums, const T* x, int64_t rows,
                       int64_t columns) {
  constexpr int width = Pack<T>::size;
  constexpr int lanes = 8;
  if (columns % width == 0 && packable(x)) {
    launch_column_sums<T, Sum, width, lanes>(context, sums, x, rows, columns, first_pass_rows);
  } else {
    launch_column_sums<T, Sum, 1, lanes>(context, sums, x, rows, columns, first_pass_rows);
  }
}

/// Sums the columns of x (R, C) into out (C), in an order that depends on R alone. If the rows fit
/// into one chunk, one pass is enough. Otherwise a second pass adds up the chunks.
template <class T>
void sum_columns(const Context& context, T* out, const T* x, int64_t rows, int64_t columns) {
  if (columns == 0) return;
  if (rows <= first_pass_rows) return first_column_sums(context, out, x, rows, columns);
  const int64_t chunks = (rows + first_pass_rows - 1) / first_pass_rows;
  const Tensor parts = context.workspace({chunks, columns});
  first_column_sums(context, parts.data<float>(), x, rows, columns);
  // The second pass reads little, so latency limits it: 32 threads share a column instead of 8.
  launch_column_sums<float, T, 1, 32>(context, out, parts.data<float>(), chunks, columns, chunks);
}

}  // namespace

int64_t column_sums_workspace(int64_t rows, int64_t channels) {
  if (rows <= first_pass_rows) return 0;
  return (rows + first_pass_rows - 1) / first_pass_rows * channels * dtype_size(DType::f32);
}

void column_sums(const Context& context, const Tensor& sums, const Tensor& x) {
  visit_float(x.dtype(), "linear", [&]<class T>() {
    sum_columns(context, sums.data<T>(), x.data<T>(), rows_of(x), sums.elements());
  });
}

}  // namespace tessera::cuda
