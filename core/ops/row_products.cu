// row_products on CUDA: a warp computes a product. The gradient of the table is that of embedding
// (embedding.cuh), whose rows are those of x times the gradients of the products.
#include "core/ops/row_products.h"

#include "core/ops/convert.h"
#include "core/ops/embedding.cuh"
#include "core/ops/fill.h"

namespace tessera::cuda {

namespace {

using embedding::Positions;
using embedding::sum_rows;
using embedding::threads;
using embedding::WarpOfGrid;
using embedding::warps;

Positions positions_of(const RowProductInputs& in) {
  return {.tokens = in.indices.data<int32_t>(),
          .count = in.indices.elements(),
          .vocabulary = in.table.size(0),
          .fault = FaultKind::row_products_index};
}

template <class T>
struct Products {
  T* products;     // null: squares of the table's rows instead
  float* squares;
  const T* x;
  const T* table;
  Positions indices;
  int64_t count;  // of results
  int64_t channels;
  int64_t per_row;
  bool shared;
};

/// A product is a warp's.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) row_products_kernel(Products<T> args, Fault* fault) {
  const WarpOfGrid at;
  if (at.index >= args.count) return;
  const int64_t b = args.products == nullptr ? 0 : at.index / args.per_row;
  const int64_t place = args.shared ? at.index - b * args.per_row : at.index;
  int32_t index = args.indices.tokens[place];
  if (!args.indices.known(index)) {
    if (at.lane == 0) {
      report_fault(fault, args.indices.fault, place, index, args.indices.vocabulary);
    }
    index = 0;
  }
  const T* row = args.table + index * args.channels;
  const T* other = args.products == nullptr ? row : args.x + b * args.channels;
  float sum = 0;
  for (int64_t c = int64_t{at.lane} * n; c < args.channels; c += warp_size * n) {
    const Floats<n> left = widened(load_elements<aligned, n>(other + c));
    const Floats<n> right = widened(load_elements<aligned, n>(row + c));
    unrolled<n>([&](int i) { sum += left.value[i] * right.value[i]; });
  }
  sum = warp_sum(sum);
  if (at.lane != 0) return;
  if (args.products == nullptr) {
    args.squares[at.index] = sum;
  } else {
    args.products[at.index] = rounded<T>(sum);
  }
}

/// Threads of a warp: columns of one row of x. Blocks (x, y) of the grid: rows, columns.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    row_products_dx_kernel(T* dx, const T* dy, const T* table, Positions indices, int64_t rows,
                           int64_t channels, int64_t per_row) {
  const WarpOfGrid at;
  const int64_t column = (int64_t{blockIdx.y} * warp_size + at.lane) * n;
  if (at.index >= rows || column >= channels) return;
  const int64_t begin = at.index * per_row;
  const auto row_of = [&](int64_t k) {
    const int32_t index = indices.tokens[begin + k];
    return int64_t{indices.known(index) ? index : 0};
  };
  Floats<n> sum = {};
  sum_rows<aligned>(sum, table, channels, column, per_row, row_of,
                    [&](int64_t k) { return float(dy[begin + k]); });
  store_elements<aligned>(dx + at.index * channels + column, sum);
}

/// dtable[v] += 2 table[v] times the sum of dsquares over the sorted places of v. A warp has a row.
template <class T>
__global__ void __launch_bounds__(threads)
    add_squares_kernel(T* dtable, const T* table, const float* dsquares, const int32_t* order,
                       const int32_t* ends, int64_t vocabulary, int64_t channels) {
  const WarpOfGrid at;
  if (at.index >= vocabulary) return;
  const int64_t begin = ends[at.index];
  const int64_t end = ends[at.index + 1];
  if (begin == end) return;
  float factor = 0;
  for (int64_t i = begin + at.lane; i < end; i += warp_size) factor += dsquares[order[i]];
  factor = 2 * warp_sum(factor);
  for (int64_t c = at.lane; c < channels; c += warp_size) {
    T& to = dtable[at.index * channels + c];
    to = rounded<T>(float(to) + factor * float(table[at.index * channels + c]));
  }
}

}  // namespace

/// Takes no workspace. A wrong index is thrown by the host's next synchronisation.
void row_products_forward(const Context& context, const Tensor& products, const Tensor& squares,
                          const RowProductInputs& in) {
  const int64_t channels = in.x.size(1);
  TESSERA_CHECK(in.table.size(0) > 0 || in.indices.elements() == 0,
                "row_products: the table has shape {}, expected rows", in.table.shape());
  visit_float(in.x.dtype(), "row_products", [&]<class T>() {
    Products<T> args{.products = products.data<T>(),
                     .squares = nullptr,
                     .x = in.x.data<T>(),
                     .table = in.table.data<T>(),
                     .indices = positions_of(in),
                     .count = products.elements(),
                     .channels = channels,
                     .per_row = in.per_row(),
                     .shared = in.shared()};
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const auto compute = [&] {
            if (args.count == 0) return;
            launch(context, "row_products", {blocks_for(args.count, warps), threads},
                   row_products_kernel<T, n, aligned>, args, device_fault(context));
          };
          compute();
          if (!squares.defined()) return;
          args.products = nullptr;
          args.squares = squares.data<float>();
          args.count = squares.elements();
          args.shared = false;
          compute();
        },
        args.x, args.table);
  });
}

/// Takes no workspace.
void row_products_dx(const Context& context, const Tensor& dx, const Tensor& dproducts,
                     const RowProductInputs& in) {
  if (dx.elements() == 0) return;
  const int64_t channels = dx.size(1);
  visit_float(dx.dtype(), "row_products", [&]<class T>() {
    T* const to = dx.data<T>();
    const T* const table = in.table.data<T>();
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(blocks_for(dx.size(0), warps), blocks_for(channels, warp_size * n));
          launch(context, "row_products_dx", {grid, threads}, row_products_dx_kernel<T, n, aligned>,
                 to, dproducts.data<T>(), table, positions_of(in), dx.size(0), channels,
                 in.per_row());
        },
        to, table);
  });
}

void row_products_dtable(const Context& context, const Tensor& dtable,
                         const RowProductGradients& gradients, const RowProductInputs& in,
                         bool accumulate) {
  constexpr const char* name = "row_products_dtable";
  const Positions positions = positions_of(in);
  const int64_t work = positions.count + positions.vocabulary;
  TESSERA_CHECK(work < INT32_MAX, "row_products: {} indices and rows together, at most {}", work,
                INT32_MAX);
  if (dtable.elements() == 0) return;
  embedding::Sorted sorted{.order = context.workspace({positions.count}, DType::i32),
                           .ends = context.workspace({positions.vocabulary + 1}, DType::i32),
                           .weights = gradients.products,
                           .per_row = in.per_row()};
  embedding::sort_by_token(context, sorted.order, sorted.ends, positions);
  if (!gradients.products.defined()) {
    if (!accumulate) fill(context, dtable, 0.0f);
  } else {
    if (dtable.dtype() != DType::f32) {
      sorted.weights = context.workspace({positions.count});
      convert(context, sorted.weights, gradients.products);
    }
    embedding::sum_by_token<true>(context, name, dtable, in.x, sorted, accumulate);
  }
  if (!gradients.squares.defined()) return;
  visit_float(dtable.dtype(), name, [&]<class T>() {
    launch(context, name, {blocks_for(positions.vocabulary, warps), threads}, add_squares_kernel<T>,
           dtable.data<T>(), in.table.data<T>(), gradients.squares.data<float>(),
           sorted.order.data<int32_t>(), sorted.ends.data<int32_t>(), positions.vocabulary,
           in.x.size(1));
  });
}

}  // namespace tessera::cuda
