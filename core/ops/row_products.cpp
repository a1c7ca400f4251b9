// row_products: x (B, C), indices i32 (B, K), table (V, C)
//   -> products[b, k] = x[b] . table[indices[b, k]],  squares[b, k] = |table[indices[b, k]]|^2.
// It is what a matrix factorization computes: no row of the table is copied, so that only the table
// and B rows are read. Where K is large, or the table stays in the cache, that is much less than
// B K rows.
#include "core/ops/row_products.h"

#include <array>

#include "core/autograd.h"
#include "core/ops/embedding_rows.h"
#include "core/table_ops.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_shapes(const RowProductInputs& in) {
  const auto& [x, indices, table] = in;
  TESSERA_CHECK(table.rank() == 2, "row_products: table has shape {}, expected (V, C)",
                table.shape());
  TESSERA_CHECK(x.rank() == 2 && x.size(1) == table.size(1),
                "row_products: x has shape {}, expected [B, {}]", x.shape(), table.size(1));
  TESSERA_CHECK(x.dtype() == table.dtype(), "row_products: x has dtype {}, expected {}",
                dtype_name(x.dtype()), dtype_name(table.dtype()));
  const bool fits = indices.rank() == 2 && (indices.size(0) == x.size(0) || indices.size(0) == 1);
  TESSERA_CHECK(fits && indices.dtype() == DType::i32,
                "row_products: indices are {} {}, expected i32 [{}, K] or [1, K]",
                dtype_name(indices.dtype()), indices.shape(), x.size(0));
}

void check_range(const Tensor& indices, int64_t rows) {
  if (!indices.device().is_cpu()) return;  // the device's kernel checks, as embedding's does
  const auto values = indices.values<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_CHECK(0 <= values[i] && values[i] < rows,
                  "row_products: index {} at position {} is outside [0, {})", values[i], i, rows);
  }
}

void check_gradient(const RowProductInputs& in) {
  const bool recorded = grad_enabled() && (in.x.requires_grad() || in.table.requires_grad());
  TESSERA_CHECK(
      !recorded || in.indices.size(0) == in.x.size(0),
      "row_products: indices {} are shared by {} rows, expected indices of each row where "
      "a gradient is wanted",
      in.indices.shape(), in.x.size(0));
}
}  // namespace

RowProducts row_products(const Tensor& x, const Tensor& indices, const Tensor& table,
                         bool squares) {
  const RowProductInputs given{x, indices, table};
  check_shapes(given);
  check_range(indices, table.size(0));
  check_gradient(given);
  const trace::Scope scope("row_products");
  const InUse in_use({&x, &table});
  RowProducts result{.products = Tensor::empty({x.size(0), indices.size(1)}, x.dtype(), x.device()),
                     .squares = {}};
  if (squares) result.squares = Tensor::empty(indices.shape(), DType::f32, x.device());
  kernels::row_products_forward(current_context(x.device()), result.products, result.squares,
                                given);
  std::array<Tensor, 2> outputs{result.products, result.squares};
  const RowProductInputs in{saved(x), saved(indices), saved(table)};
  record("row_products", std::span(outputs).first(squares ? 2 : 1), {x, table},
         [in](std::span<const Tensor> dys, InputGradients& grads) {
           const Context context = current_context(in.x.device());
           const RowProductGradients dy{dys[0], dys.size() > 1 ? dys[1] : Tensor()};
           const InUse in_backward({&in.x, &in.table});
           if (grads.wanted(0) && dy.products.defined()) {
             kernels::row_products_dx(context, grads.destination(0), dy.products, in);
           }
           if (!grads.wanted(1)) return;
           const auto [dtable, accumulate] = grads.accumulating_destination(1);
           kernels::row_products_dtable(context, dtable, dy, in, accumulate);
         });
  return {outputs[0], outputs[1]};
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

/// a . b, in f32. The order is that of 16 lanes, however long a vector is and wherever rows lie.
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
  for (int64_t half = lanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

}  // namespace

void row_products_forward(const Context&, const Tensor& products, const Tensor& squares,
                          const RowProductInputs& in) {
  const int64_t channels = in.x.size(1);
  const int64_t per_row = in.per_row();
  const int32_t* indices = in.indices.data<int32_t>();
  const bool shared = in.shared();
  visit_float(in.x.dtype(), "row_products", [&]<class T>() {
    const T* x = in.x.data<T>();
    const T* table = in.table.data<T>();
    T* y = products.data<T>();
    parallel_ranges(in.x.size(0), per_row * channels, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int32_t* own = indices + (shared ? 0 : b * per_row);
        for (int64_t k = 0; k < per_row; ++k) {
          y[b * per_row + k] =
              rounded<T>(inner_product(x + b * channels, table + own[k] * channels, channels));
        }
      }
    });
    if (!squares.defined()) return;
    float* const sums = squares.data<float>();
    parallel_ranges(squares.elements(), channels, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* row = table + indices[i] * channels;
        sums[i] = inner_product(row, row, channels);
      }
    });
  });
}

void row_products_dx(const Context&, const Tensor& dx, const Tensor& dproducts,
                     const RowProductInputs& in) {
  const int64_t channels = in.x.size(1);
  const int64_t per_row = in.per_row();
  const int32_t* indices = in.indices.data<int32_t>();
  visit_float(dx.dtype(), "row_products", [&]<class T>() {
    const T* dy = dproducts.data<T>();
    const T* const table = in.table.data<T>();
    T* const to = dx.data<T>();
    parallel_ranges(dx.size(0), per_row * channels, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        T* out = to + b * channels;
        const auto write = [=](const float* sum, int64_t first, int64_t columns) {
          for (int64_t c = 0; c < columns; ++c) out[first + c] = rounded<T>(sum[c]);
        };
        const auto row_of = [=](int64_t k) {
          const int64_t at = b * per_row + k;
          return WeightedRow{indices[at], float(dy[at])};
        };
        sum_rows(table, channels, per_row, row_of, write);
      }
    });
  });
}

void row_products_dtable(const Context& context, const Tensor& dtable,
                         const RowProductGradients& gradients, const RowProductInputs& in,
                         bool accumulate) {
  const int64_t places = in.indices.elements();
  const int64_t work = places + dtable.size(0);
  TESSERA_CHECK(work < INT32_MAX, "row_products: {} indices and rows together, at most {}", work,
                INT32_MAX);
  const int32_t* indices = in.indices.data<int32_t>();
  const TokenOrder sorted = sort_by_token(context, places, dtable.size(0), [&](const auto& body) {
    for (int64_t i = 0; i < places; ++i) body(indices[i], i);
  });
  const int64_t channels = dtable.size(1);
  const int64_t per_row = in.per_row();
  const int32_t* start = sorted.start.data<int32_t>();
  const float* dsquares = gradients.squares.defined() ? gradients.squares.data<float>() : nullptr;
  visit_float(dtable.dtype(), "row_products", [&]<class T>() {
    const T* dy = gradients.products.defined() ? gradients.products.data<T>() : nullptr;
    const T* const x = in.x.data<T>();
    const T* const table = in.table.data<T>();
    T* const to = dtable.data<T>();
    const int32_t* const all = sorted.order.data<int32_t>();
    parallel_segments(start, dtable.size(0), channels, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const int32_t count = start[v + 1] - start[v];
        if (count == 0 && accumulate) continue;
        const int32_t* order = all + start[v];
        float factor = 0;
        for (int32_t i = 0; dsquares != nullptr && i < count; ++i) factor += dsquares[order[i]];
        factor *= 2;
        const T* row = table + v * channels;
        T* out = to + v * channels;
        const auto write = [=](const float* sum, int64_t first, int64_t columns) {
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) {
            // Without squares the row's own values leave no trace.
            const float total =
                factor == 0 ? sum[c] : multiply_add(factor, float(row[first + c]), sum[c]);
            out[first + c] = rounded<T>(accumulate ? float(out[first + c]) + total : total);
          }
        };
        const auto row_of = [=](int64_t i) {
          return WeightedRow{per_row == 1 ? order[i] : order[i] / per_row, float(dy[order[i]])};
        };
        sum_rows(x, channels, dy == nullptr ? 0 : count, row_of, write);
      }
    });
  });
}

}  // namespace tessera::cpu
