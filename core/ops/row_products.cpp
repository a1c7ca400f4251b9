// row_products: left (V, C) with indices i, i32 (B); right (W, C) with indices j, i32 (B, K)
//   -> products[b, k] = left[i[b]] . right[j[b, k]] + the biases of both rows,
//      squares = the sum of the squares of all rows and biases that were looked up.
// A matrix factorization needs these products. Rows are read in place and not copied for each
// product. The tables are much smaller than copies of B K rows and often stay in the cache.
#include "core/ops/row_products.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/autograd.h"
#include "core/ops/row_products_rows.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_lookup(const char* side, const Lookup& at, int64_t channels, DType dtype) {
  TESSERA_CHECK(at.table.rank() == 2 && at.table.size(1) == channels,
                "row_products: the {} table has shape {}, expected [V, {}]", side, at.table.shape(),
                channels);
  TESSERA_CHECK(at.table.dtype() == dtype, "row_products: the {} table has dtype {}, expected {}",
                side, dtype_name(at.table.dtype()), dtype_name(dtype));
  if (!at.bias.defined()) return;
  const Shape expected{at.table.size(0), 1};
  TESSERA_CHECK(at.bias.shape() == expected && at.bias.dtype() == dtype,
                "row_products: the {} bias is {} {}, expected {} {}", side,
                dtype_name(at.bias.dtype()), at.bias.shape(), dtype_name(dtype), expected);
}

void check_indices(const RowProductInputs& in) {
  const Tensor& left = in.left.indices;
  TESSERA_CHECK(!left.defined() || (left.rank() == 1 && left.dtype() == DType::i32),
                "row_products: left indices are {} {}, expected i32 [B]", dtype_name(left.dtype()),
                left.shape());
  const Tensor& right = in.right.indices;
  const bool fits = right.defined() && right.rank() == 2 && right.dtype() == DType::i32 &&
                    (right.size(0) == in.rows() || right.size(0) == 1);
  TESSERA_CHECK(fits && right.size(1) > 0,
                "row_products: right indices are {} {}, expected i32 [{}, K] or [1, K], K > 0",
                right.defined() ? dtype_name(right.dtype()) : "undefined",
                right.defined() ? right.shape() : Shape{}, in.rows());
}

void check_range(const char* side, const Lookup& at) {
  // On a GPU the kernel checks the indices.
  if (!at.indices.defined() || !at.indices.device().is_cpu()) return;
  const auto values = at.indices.values<int32_t>();
  const int64_t rows = at.table.size(0);
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_CHECK(0 <= values[i] && values[i] < rows,
                  "row_products: {} index {} at position {} is outside [0, {})", side, values[i], i,
                  rows);
  }
}

void check(const RowProductInputs& in) {
  const auto& [left, right] = in;
  TESSERA_CHECK(left.table.rank() == 2,
                "row_products: the left table has shape {}, expected (V, C)", left.table.shape());
  check_lookup("left", left, left.table.size(1), left.table.dtype());
  check_lookup("right", right, left.table.size(1), left.table.dtype());
  check_indices(in);
  check_range("left", left);
  check_range("right", right);
  TESSERA_CHECK(left.indices.defined() || !left.bias.defined(),
                "row_products: the left bias has shape {}, but no indices look it up",
                left.bias.shape());
  const int64_t work = in.rows() * in.per_row() + std::max(left.table.size(0), right.table.size(0));
  TESSERA_CHECK(work < INT32_MAX,
                "row_products: {} indices and rows together, expected less than {}", work,
                INT32_MAX);
  bool recorded = false;
  for (const Lookup& at : {left, right}) {
    recorded |= at.table.requires_grad() || (at.bias.defined() && at.bias.requires_grad());
  }
  TESSERA_CHECK(!recorded || !grad_enabled() || !in.shared(),
                "row_products: right indices {} are shared by {} rows, expected separate indices "
                "for each row if a gradient is recorded",
                right.indices.shape(), in.rows());
}

/// Returns the lookup for the kernels. For a row-sparse table (core/autograd.h), the lookup has the
/// rows that rows_of fetched, and indices into these rows. For other tables, the lookup is `at`.
/// Throws if the rows of a table and of its bias were fetched in different orders, because the
/// kernels use the same indices for the table and the bias.
Lookup read_rows(const char* side, const Lookup& at) {
  const bool sparse = read_whole(at.table) == nullptr;
  const bool sparse_bias = at.bias.defined() && read_whole(at.bias) == nullptr;
  if (!sparse && !sparse_bias) return at;
  TESSERA_CHECK(at.indices.defined(),
                "row_products: the {} table '{}' is row-sparse, expected indices of its rows", side,
                at.table.leaf()->name);
  TESSERA_CHECK(
      !at.bias.defined() || sparse == sparse_bias,
      "row_products: only one of the {} table and its bias is row-sparse, expected both or neither",
      side);
  const auto [table, indices] = rows_of(at.table, at.indices);
  if (!at.bias.defined()) return {table, indices, {}};
  const auto [bias, bias_indices] = rows_of(at.bias, at.indices);
  const Tensor a = indices.to_host();
  const Tensor b = bias_indices.to_host();
  TESSERA_CHECK(std::ranges::equal(a.values<int32_t>(), b.values<int32_t>()),
                "row_products: the {} bias '{}' has looked up or prefetched its rows in another "
                "order than its table, so their places differ; look both up, and prefetch both, "
                "with the same indices",
                side, at.bias.leaf()->name);
  return {table, indices, bias};
}

Lookup saved_lookup(const Lookup& at) {
  const auto kept = [](const Tensor& x) { return x.defined() ? saved(x) : Tensor(); };
  return {kept(at.table), kept(at.indices), kept(at.bias)};
}

const Tensor* if_defined(const Tensor& x) { return x.defined() ? &x : nullptr; }
const Tensor* if_read_whole(const Tensor& x) { return x.defined() ? read_whole(x) : nullptr; }

/// The inputs of the recorded operation, and the index of each bias and table among the inputs. An
/// undefined bias has index -1.
struct InputPlaces {
  std::vector<Tensor> inputs;
  std::array<std::array<int, 2>, 2> places;  // for each side: [0] bias, [1] table

  explicit InputPlaces(const RowProductInputs& in) {
    const auto add = [&](const Tensor& x) {
      if (!x.defined()) return -1;
      inputs.push_back(x);
      return static_cast<int>(inputs.size()) - 1;
    };
    for (const auto& [side, at] : {std::pair{0, in.left}, std::pair{1, in.right}}) {
      places[static_cast<size_t>(side)] = {add(at.bias), add(at.table)};
    }
  }
};

GradientTarget target_of(InputGradients& grads, int input) {
  if (input < 0 || !grads.wanted(input)) return {};
  const auto [gradient, accumulate] = grads.accumulating_destination(input);
  return {gradient, accumulate};
}
}  // namespace

RowProducts row_products(const Lookup& left, const Lookup& right, bool squares) {
  const RowProductInputs given{left, right};
  check(given);
  const trace::Scope scope("row_products");
  const InUse in_use({read_whole(left.table), read_whole(right.table), if_read_whole(left.bias),
                      if_read_whole(right.bias)});
  const RowProductInputs read{read_rows("left", left), read_rows("right", right)};
  check_one_device({&read.left.table, &read.left.indices, &read.left.bias, &read.right.table,
                    &read.right.indices, &read.right.bias});
  const Device device = read.left.table.device();
  RowProducts result{
      .products = Tensor::empty({read.rows(), read.per_row()}, left.table.dtype(), device),
      .squares = squares ? Tensor::empty({}, DType::f32, device) : Tensor()};
  kernels::row_products_forward(current_context(device), result.products, result.squares, read);
  std::array<Tensor, 2> outputs{result.products, result.squares};
  const InputPlaces at(given);
  const RowProductInputs in{saved_lookup(read.left), saved_lookup(read.right)};
  record("row_products", std::span(outputs).first(squares ? 2 : 1), at.inputs,
         [in, places = at.places](std::span<const Tensor> dys, InputGradients& grads) {
           const Context context = current_context(in.left.table.device());
           const RowProductGradients dy{dys[0], dys.size() > 1 ? dys[1] : Tensor()};
           const InUse in_backward({&in.left.table, &in.right.table, if_defined(in.left.bias),
                                    if_defined(in.right.bias)});
           for (const RowProductSide side : {RowProductSide::right, RowProductSide::left}) {
             const auto [bias, table] = places[static_cast<size_t>(side)];
             const GradientTarget dtable = target_of(grads, table);
             const GradientTarget dbias = target_of(grads, bias);
             if (dtable.gradient.defined() || dbias.gradient.defined()) {
               kernels::row_products_backward(context, dtable, dbias, side, dy, in);
             }
             // Declares this side's gradients complete, so that they can be sent while the other
             // side's gradients are computed.
             for (const int input : {table, bias}) {
               if (input >= 0) grads.written(input);
             }
           }
         });
  return {outputs[0], outputs[1]};
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

/// Returns a . b, in f32. There are always 16 partial sums, whatever the addresses and the CPU's
/// vector width, so that the order of addition is fixed.
template <class T>
float inner_product(const T* a, const T* b, int64_t count) {
  constexpr int64_t lanes = 16;
  float sums[lanes] = {};
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) {
      sums[l] = multiply_add(float(a[c + l]), float(b[c + l]), sums[l]);
    }
  }
  for (int64_t l = 0; c + l < count; ++l) {
    sums[l] = multiply_add(float(a[c + l]), float(b[c + l]), sums[l]);
  }
#pragma GCC unroll 4
  for (int64_t half = lanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

template <class T>
void multiply(T* products, const RowProductInputs& in) {
  const Rows<T> left(in.left);
  const Rows<T> right(in.right);
  const int64_t per_row = in.per_row();
  const int64_t channels = in.channels();
  const bool shared = in.shared();
  const int64_t rows = in.rows();
  parallel_ranges(rows, per_row * channels, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      if (per_row == 1 && b + rows_ahead < rows) {
        prefetch_row(left.row(left.index(b + rows_ahead)), channels);
        if (!shared) prefetch_row(right.row(right.index(b + rows_ahead)), channels);
      }
      const int64_t i = left.index(b);
      const T* const row = left.row(i);
      const float bias = left.bias_of(i);
      const int64_t first = shared ? 0 : b * per_row;
      for (int64_t k = 0; k < per_row; ++k) {
        const int64_t j = right.index(first + k);
        const float product = inner_product(row, right.row(j), channels);
        products[b * per_row + k] = rounded<T>(product + (bias + right.bias_of(j)));
      }
    }
  });
}

/// Returns the sum of the squares of all rows and biases that were looked up. A row with n lookups
/// is added n times. Blocks of rows are summed in parallel. Then the blocks' sums are added in
/// order.
template <class T>
double sum_of_squares(const Context& context, const ops::Lookup& at) {
  constexpr int64_t block = 64;
  const Rows<T> rows(at);
  const int64_t count = at.table.size(0);
  const int64_t blocks = (count + block - 1) / block;
  const Tensor lookups = context.workspace({at.indices.defined() ? count : 0}, DType::i32);
  const Tensor scratch = context.workspace({blocks * 2});  // an f64 is as large as two f32
  auto* const times = lookups.data<int32_t>();
  auto* const sums = static_cast<double*>(scratch.raw());
  if (rows.looks_up) {
    std::fill_n(times, count, 0);
    for (int64_t i = 0; i < at.indices.elements(); ++i) ++times[rows.indices[i]];
  }
  parallel_ranges(blocks, block * rows.channels, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      double sum = 0;
      const int64_t last = std::min(count, (number + 1) * block);
      for (int64_t v = number * block; v < last; ++v) {
        const int32_t often = rows.looks_up ? times[v] : 1;
        if (often == 0) continue;
        const float bias = rows.bias_of(v);
        sum +=
            double(often) * (inner_product(rows.row(v), rows.row(v), rows.channels) + bias * bias);
      }
      sums[number] = sum;
    }
  });
  double total = 0;
  for (int64_t number = 0; number < blocks; ++number) total += sums[number];
  return total;
}

}  // namespace

void row_products_forward(const Context& context, const Tensor& products, const Tensor& squares,
                          const RowProductInputs& in) {
  visit_float(products.dtype(), "row_products", [&]<class T>() {
    multiply(products.data<T>(), in);
    if (!squares.defined()) return;
    const double left = sum_of_squares<T>(context, in.left);
    *squares.data<float>() = static_cast<float>(left + sum_of_squares<T>(context, in.right));
  });
}

}  // namespace tessera::cpu
