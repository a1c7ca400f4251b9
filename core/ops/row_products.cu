// row_products on CUDA: a warp computes a product. The gradient of a table's row is a sum of rows
// of the other table, weighted by the gradients of the products. For this sum, the places (b, k) of
// the products are sorted by the row that a place looks up, as in the gradient of embedding
// (embedding.cuh). A left side without indices needs no sorting.
#include "core/ops/row_products.h"

#include "core/ops/convert.h"
#include "core/ops/embedding.cuh"
#include "core/ops/fill.h"
#include "core/ops/sum.h"

namespace tessera::cuda {

namespace {

using embedding::Positions;
using embedding::squares_factor;
using embedding::sum_rows;
using embedding::threads;
using embedding::WarpOfGrid;
using embedding::warps;

constexpr const char* name = "row_products";

/// Pointers to the memory of a Lookup.
template <class T>
struct Rows {
  const T* table;
  const T* bias;           // null if there is none
  const int32_t* indices;  // null: row b of the results uses row b of `table`
  int64_t count;           // rows of the table

  explicit Rows(const ops::Lookup& at)
      : table(at.table.data<T>()),
        bias(at.bias.defined() ? at.bias.data<T>() : nullptr),
        indices(at.indices.defined() ? at.indices.data<int32_t>() : nullptr),
        count(at.table.size(0)) {}

  __device__ bool known(int64_t index) const { return index >= 0 && index < count; }
  /// Returns indices[place], or `place` if `indices` is null. If the index is out of range, returns
  /// 0, and reports the index to `fault` if `fault` is not null.
  __device__ int64_t index(int64_t place, Fault* fault = nullptr) const {
    if (indices == nullptr) return place;
    const int32_t index = indices[place];
    if (known(index)) return index;
    if (fault != nullptr) report_fault(fault, FaultKind::row_products_index, place, index, count);
    return 0;
  }
  __device__ float bias_of(int64_t index) const {
    return bias == nullptr ? 0.0f : float(bias[index]);
  }
};

/// Returns a . b, computed by a warp; all lanes of the warp get the result.
template <int n, bool aligned, class T>
__device__ inline float inner_product(const T* a, const T* b, int64_t channels, int lane) {
  float sum = 0;
  for (int64_t c = int64_t{lane} * n; c < channels; c += warp_size * n) {
    const Floats<n> left = widened(load_elements<aligned, n>(a + c));
    const Floats<n> right = widened(load_elements<aligned, n>(b + c));
    unrolled<n>([&](int i) { sum += left.value[i] * right.value[i]; });
  }
  return warp_sum(sum);
}

struct ProductSizes {
  int64_t products;
  int64_t channels;
  int64_t per_row;
  bool shared;
};

template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    row_products_kernel(T* products, Rows<T> left, Rows<T> right, ProductSizes s, Fault* fault) {
  const WarpOfGrid at;
  if (at.index >= s.products) return;
  const int64_t b = at.index / s.per_row;
  Fault* const reported = at.lane == 0 ? fault : nullptr;
  const int64_t i = left.index(b, reported);
  const int64_t j = right.index(s.shared ? at.index - b * s.per_row : at.index, reported);
  const float product = inner_product<n, aligned>(
      left.table + i * s.channels, right.table + j * s.channels, s.channels, at.lane);
  if (at.lane == 0) {
    products[at.index] = rounded<T>(product + (left.bias_of(i) + right.bias_of(j)));
  }
}

/// Writes one value for each of the `places` lookups of one side: the sum of the squares of the
/// row's elements, plus the square of the row's bias.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    row_squares_kernel(float* squares, Rows<T> rows, int64_t places, int64_t channels) {
  const WarpOfGrid at;
  if (at.index >= places) return;
  const int64_t i = rows.index(at.index);
  const T* row = rows.table + i * channels;
  const float square = inner_product<n, aligned>(row, row, channels, at.lane);
  const float bias = rows.bias_of(i);
  if (at.lane == 0) squares[at.index] = square + bias * bias;
}

/// Writes repeated (B, K), the left row of each place (b, k), from indices (B).
__global__ void __launch_bounds__(threads)
    repeat_indices_kernel(int32_t* repeated, const int32_t* indices, int64_t places,
                          int64_t per_row) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < places) repeated[i] = indices[i / per_row];
}

/// Computes dleft for a left side without indices, where all places (b, k) look up row b. A warp
/// sums 32 * n columns of one row. In the grid, blocks along x go over rows and blocks along y over
/// columns. dy and dsquares may be null.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    row_products_dleft_kernel(T* dleft, const T* left, const T* dy, Rows<T> right,
                              const float* dsquares, ProductSizes s, bool accumulate) {
  const WarpOfGrid at;
  const int64_t column = (int64_t{blockIdx.y} * warp_size + at.lane) * n;
  if (at.index * s.per_row >= s.products || column >= s.channels) return;
  const int64_t begin = at.index * s.per_row;
  Floats<n> sum = {};
  if (dy != nullptr) {
    sum_rows<aligned>(sum, right.table, s.channels, column, s.per_row,
                      [&](int64_t k) { return right.index(begin + k); },
                      [&](int64_t k) { return float(dy[begin + k]); });
  }
  const int64_t to = at.index * s.channels + column;
  // If dsquares is 0, the row must not be multiplied by it: 0 times an infinite value is NaN.
  if (dsquares != nullptr && *dsquares != 0) {
    const Floats<n> row = widened(load_elements<aligned, n>(left + to));
    unrolled<n>([&](int i) { sum.value[i] += 2 * *dsquares * row.value[i]; });
  }
  if (accumulate) {
    const Floats<n> before = widened(load_elements<aligned, n>(dleft + to));
    unrolled<n>([&](int i) { sum.value[i] = before.value[i] + sum.value[i]; });
  }
  store_elements<aligned>(dleft + to, sum);
}

/// Arguments of row_rest_kernel, which computes what sum_by_token does not, for each row v of the
/// table:
///   dbias[v]    = sum of dy over the places (b, k) that use v, plus 2 n dsquares bias[v]
///   dtable[v]  += 2 n dsquares table[v], if there is no dy
/// n is the number of lookups of v. A lookup in the left table serves K places, and a lookup in the
/// right table serves one place.
template <class T>
struct RowRest {
  T* dtable;              // null if not wanted, or if there is a dy
  T* dbias;               // null if not wanted
  bool accumulate_bias;   // false: overwrite dbias instead of adding to it
  const T* dy;            // (B, K), or null
  const float* dsquares;  // or null
  const int32_t* order;
  const int32_t* ends;
  int64_t channels;
  int64_t places_per_lookup;
};

/// A warp handles a row of the table.
template <class T>
__global__ void __launch_bounds__(threads) row_rest_kernel(RowRest<T> args, Rows<T> own) {
  const WarpOfGrid at;
  const int64_t v = at.index;
  if (v >= own.count) return;
  const int64_t begin = args.ends[v];
  const int64_t count = args.ends[v + 1] - begin;
  const float factor = squares_factor(args.dsquares, count, args.places_per_lookup);
  if (args.dbias != nullptr) {
    float sum = 0;
    if (args.dy != nullptr) {
      for (int64_t i = at.lane; i < count; i += warp_size) {
        sum += float(args.dy[args.order[begin + i]]);
      }
    }
    sum = warp_sum(sum);
    if (factor != 0) sum += factor * own.bias_of(v);  // 0 times an infinite bias is NaN
    T& to = args.dbias[v];
    if (at.lane == 0) to = rounded<T>(args.accumulate_bias ? float(to) + sum : sum);
  }
  if (args.dtable == nullptr || factor == 0) return;
  for (int64_t c = at.lane; c < args.channels; c += warp_size) {
    T& to = args.dtable[v * args.channels + c];
    to = rounded<T>(float(to) + factor * float(own.table[v * args.channels + c]));
  }
}

ProductSizes sizes_of(const RowProductInputs& in) {
  return {.products = in.rows() * in.per_row(),
          .channels = in.channels(),
          .per_row = in.per_row(),
          .shared = in.shared()};
}

/// Writes the values of row_squares_kernel for all lookups of one side, from squares[first] on.
/// Returns the index after the last value written.
template <class T>
int64_t write_squares(const Context& context, const Tensor& squares, int64_t first,
                      const ops::Lookup& at) {
  const int64_t places = at.indices.defined() ? at.indices.elements() : at.table.size(0);
  const Rows<T> rows(at);
  const int64_t channels = at.table.size(1);
  if (places == 0) return first;
  visit_access<neighbours<T>>(
      channels,
      [&]<int n, bool aligned>() {
        launch(context, name, {blocks_for(places, warps), threads},
               row_squares_kernel<T, n, aligned>, squares.data<float>() + first, rows, places,
               channels);
      },
      rows.table);
  return first + places;
}

}  // namespace

/// If an index is out of range, the host throws at its next synchronisation with the device.
void row_products_forward(const Context& context, const Tensor& products, const Tensor& squares,
                          const RowProductInputs& in) {
  const ProductSizes sizes = sizes_of(in);
  for (const ops::Lookup& at : {in.left, in.right}) {
    TESSERA_CHECK(at.table.size(0) > 0 || sizes.products == 0,
                  "row_products: a table has shape {}, expected at least one row",
                  at.table.shape());
  }
  visit_float(products.dtype(), name, [&]<class T>() {
    const Rows<T> left(in.left);
    const Rows<T> right(in.right);
    visit_access<neighbours<T>>(
        sizes.channels,
        [&]<int n, bool aligned>() {
          if (sizes.products == 0) return;
          launch(context, name, {blocks_for(sizes.products, warps), threads},
                 row_products_kernel<T, n, aligned>, products.data<T>(), left, right, sizes,
                 device_fault(context));
        },
        left.table, right.table);
    if (!squares.defined()) return;
    const Tensor each = context.workspace({in.rows() + in.right.indices.elements()});
    const int64_t first = write_squares<T>(context, each, 0, in.left);
    write_squares<T>(context, each, first, in.right);
    sum(context, squares, each, 1.0f);
  });
}

namespace {

/// Computes the gradient of a left side without indices. The places of a row are contiguous, so
/// nothing has to be sorted.
void backward_of_rows(const Context& context, const GradientTarget& target,
                      const RowProductGradients& gradients, const RowProductInputs& in) {
  const Tensor& dleft = target.gradient;
  if (dleft.elements() == 0) return;
  const ProductSizes sizes = sizes_of(in);
  visit_float(dleft.dtype(), name, [&]<class T>() {
    T* const to = dleft.data<T>();
    const T* const left = in.left.table.data<T>();
    const T* const dy = gradients.products.defined() ? gradients.products.data<T>() : nullptr;
    const Rows<T> right(in.right);
    const float* dsquares =
        gradients.squares.defined() ? gradients.squares.data<float>() : nullptr;
    visit_access<neighbours<T>>(
        sizes.channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(blocks_for(in.rows(), warps), blocks_for(sizes.channels, warp_size * n));
          launch(context, name, {grid, threads}, row_products_dleft_kernel<T, n, aligned>, to,
                 left, dy, right, dsquares, sizes, target.accumulate);
        },
        to, left, right.table);
  });
}

/// Returns the left row of each place (b, k). Without left indices, place (b, k) looks up row b,
/// and the result is an undefined tensor.
Tensor left_of_places(const Context& context, const RowProductInputs& in) {
  const Tensor& indices = in.left.indices;
  const int64_t places = in.rows() * in.per_row();
  if (!indices.defined() || in.per_row() == 1 || places == 0) return indices;
  Tensor repeated = context.workspace({places}, DType::i32);
  launch(context, name, {blocks_for(places, threads), threads}, repeat_indices_kernel,
         repeated.data<int32_t>(), indices.data<int32_t>(), places, in.per_row());
  return repeated;
}

}  // namespace

void row_products_backward(const Context& context, const GradientTarget& table,
                           const GradientTarget& bias, RowProductSide side,
                           const RowProductGradients& gradients, const RowProductInputs& in) {
  const bool of_left = side == RowProductSide::left;
  if (of_left && !in.left.indices.defined()) {
    return backward_of_rows(context, table, gradients, in);
  }
  const ops::Lookup& own = of_left ? in.left : in.right;
  const ops::Lookup& other = of_left ? in.right : in.left;
  if (own.table.size(0) == 0) return;
  const Tensor left = left_of_places(context, in);
  const Positions positions{.tokens = (of_left ? left : in.right.indices).data<int32_t>(),
                            .count = in.rows() * in.per_row(),
                            .vocabulary = own.table.size(0),
                            .fault = FaultKind::row_products_index};
  embedding::Sorted sorted{.order = context.workspace({positions.count}, DType::i32),
                           .ends = context.workspace({positions.vocabulary + 1}, DType::i32),
                           .weights = gradients.products,
                           .per_row = in.per_row(),
                           .rows = of_left ? in.right.indices : left,
                           .dsquares = gradients.squares,
                           .own = gradients.squares.defined() ? own.table : Tensor{},
                           .places_per_lookup = of_left ? in.per_row() : 1};
  embedding::sort_by_token(context, sorted.order, sorted.ends, positions);
  const Tensor& dtable = table.gradient;
  const bool has_dy = gradients.products.defined();
  if (dtable.defined() && dtable.elements() > 0) {
    if (!has_dy) {
      if (!table.accumulate) fill(context, dtable, 0.0f);
    } else {
      if (dtable.dtype() != DType::f32) {
        sorted.weights = context.workspace({positions.count});
        convert(context, sorted.weights, gradients.products);
      }
      embedding::sum_by_token<true>(context, name, dtable, other.table, sorted, table.accumulate);
    }
  }
  visit_float(own.table.dtype(), name, [&]<class T>() {
    const RowRest<T> rest{
        .dtable = dtable.defined() && !has_dy ? dtable.data<T>() : nullptr,
        .dbias = bias.gradient.defined() ? bias.gradient.data<T>() : nullptr,
        .accumulate_bias = bias.accumulate,
        .dy = has_dy ? gradients.products.data<T>() : nullptr,
        .dsquares = gradients.squares.defined() ? gradients.squares.data<float>() : nullptr,
        .order = sorted.order.data<int32_t>(),
        .ends = sorted.ends.data<int32_t>(),
        .channels = in.channels(),
        .places_per_lookup = sorted.places_per_lookup};
    if (rest.dbias == nullptr && (rest.dtable == nullptr || rest.dsquares == nullptr)) return;
    launch(context, name, {blocks_for(positions.vocabulary, warps), threads}, row_rest_kernel<T>,
           rest, Rows<T>(own));
  });
}

}  // namespace tessera::cuda
