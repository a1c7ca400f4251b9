// copy_rows, fold_rows and touched_square_sums on CUDA. Results have the same bits as on the CPU.
#include "optim/kernels/rows.h"

#include "core/cuda/kernel.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

/// The addresses of a RowList's rows.
template <class T>
struct RowsAt {
  T* base;
  const int32_t* index;  // nullptr: index[i] is i
  int64_t width;
  int64_t first;

  explicit RowsAt(const RowList& list)
      : base(list.matrix.data<T>()),
        index(list.index.defined() ? list.index.data<int32_t>() : nullptr),
        width(list.width()),
        first(list.first) {}
  __device__ int64_t row(int64_t i) const { return index == nullptr ? i : index[i]; }
  __device__ T* at(int64_t i, int64_t column) const {
    return base + (row(i) - first) * width + column;
  }
};

template <class T, class S>
__global__ void __launch_bounds__(threads)
    copy_kernel(RowsAt<T> to, RowsAt<S> from, int64_t elements) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (element >= elements) return;
  const int64_t i = element / to.width;
  const int64_t column = element % to.width;
  *to.at(i, column) = rounded<T>(float(*from.at(i, column)));
}

template <class T>
__global__ void __launch_bounds__(threads)
    fold_kernel(RowsAt<float> sums, int64_t fresh, RowsAt<T> values, int64_t elements) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (element >= elements) return;
  const int64_t i = element / sums.width;
  const int64_t column = element % sums.width;
  float* const sum = sums.at(i, column);
  // The memory of a fresh row is not initialised. The value is added to 0.0, not copied. So -0.0
  // becomes +0.0, as in a zeroed accumulator.
  const float before = sums.row(i) >= fresh ? 0.0f : *sum;
  *sum = before + float(*values.at(i, column));
}

constexpr int lanes = 16;
constexpr int block_elements = 256;
constexpr int groups = threads / lanes;  // blocks of elements per thread block

struct Touched {
  const float* sums;
  const int32_t* slots;
  const int32_t* rows;
  const int64_t* blocks;
  const int32_t* first;
  int64_t row_count;
  int64_t block_count;
  int64_t width;
};

// Half a warp adds the squares of one block of elements, in the order of block_square_sums: lane l
// adds the squares of elements l, l + 16, ... of the block in ascending order, and then the lanes
// are added pairwise. Only the elements of touched rows are read, because all others are zero.
__global__ void __launch_bounds__(threads) touched_kernel(double* squares, Touched touched) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t j = int64_t{blockIdx.x} * groups + threadIdx.x / lanes;
  double sum = 0;
  if (j < touched.block_count) {
    const int64_t begin = touched.blocks[j] * block_elements;
    const int64_t end = begin + block_elements;
    for (int64_t i = touched.first[j]; i < touched.row_count; ++i) {
      const int64_t row_begin = touched.rows[i] * touched.width;
      if (row_begin >= end) break;
      const int64_t from = max(row_begin, begin);
      const int64_t to = min(row_begin + touched.width, end);
      const float* const row = touched.sums + touched.slots[i] * touched.width;
      // The first element that this lane adds is from + offset.
      const int64_t offset = (lane - (from - begin) % lanes + lanes) % lanes;
      for (int64_t e = from + offset; e < to; e += lanes) {
        const double value = row[e - row_begin];
        sum += value * value;
      }
    }
  }
  for (int width = lanes / 2; width > 0; width /= 2) {
    sum += __shfl_down_sync(whole_warp, sum, width);
  }
  if (lane == 0 && j < touched.block_count) squares[j] = sum;
}

}  // namespace

void copy_rows(const Context& context, const RowList& to, const RowList& from, int64_t count) {
  const int64_t elements = count * to.width();
  if (elements == 0) return;
  visit_float(to.matrix.dtype(), "copy_rows", [&]<class T>() {
    visit_float(from.matrix.dtype(), "copy_rows", [&]<class S>() {
      launch(context, "copy_rows", {blocks_for(elements, threads), threads}, copy_kernel<T, S>,
             RowsAt<T>(to), RowsAt<S>(from), elements);
    });
  });
}

void fold_rows(const Context& context, const RowList& sums, int64_t fresh, const RowList& values,
               int64_t count) {
  const int64_t elements = count * sums.width();
  if (elements == 0) return;
  visit_float(values.matrix.dtype(), "fold_rows", [&]<class T>() {
    launch(context, "fold_rows", {blocks_for(elements, threads), threads}, fold_kernel<T>,
           RowsAt<float>(sums), fresh, RowsAt<T>(values), elements);
  });
}

void touched_square_sums(const Context& context, std::span<double> squares,
                         const TouchedBlocks& touched) {
  if (touched.block_count == 0) return;
  const Touched on_device{.sums = touched.sums.data<float>(),
                          .slots = touched.slots.data<int32_t>(),
                          .rows = touched.rows.data<int32_t>(),
                          .blocks = touched.blocks.data<int64_t>(),
                          .first = touched.first.data<int32_t>(),
                          .row_count = touched.row_count,
                          .block_count = touched.block_count,
                          .width = touched.sums.size(1)};
  launch(context, "touched_square_sums", {blocks_for(touched.block_count, groups), threads},
         touched_kernel, squares.data(), on_device);
}

}  // namespace tessera::cuda
