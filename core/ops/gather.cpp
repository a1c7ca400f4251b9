// index_select and gather pick elements along one dimension by index. scatter_add adds to elements
// by index. The shape of x is treated as (outer, size, inner), with the indexed dimension in the
// middle:
//   index_select   y[o, j, i] = x[o, index[j], i]
//   gather         y[o, j, i] = x[o, index[o, j, i], i]
//   scatter_add    y = x, and y[o, index[o, j, i], i] += source[o, j, i] for j = 0, 1, ...
// All terms that scatter_add adds to one element of y are in one line (o, :, i) of the source. One
// thread adds the elements of a line in order of j, so no sum depends on the timing of threads. The
// gradient of index_select or gather is a scatter_add to zeros. The gradient of scatter_add with
// respect to `source` is a gather.
#include "core/ops/gather.h"

#include <algorithm>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/convert.h"
#include "core/ops/dimensions.h"
#include "core/ops/embedding.h"
#include "core/ops/fill.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

/// Describes `shape` as (outer, size, inner), with dimension `dim` in the middle. `dim` must not be
/// negative. `count` is the number of indices per line.
Lines lines_of(Picking picking, const Shape& shape, int dim, int64_t count) {
  Lines lines{.picking = picking,
              .size = shape[dim],
              .count = count,
              .shared = picking == Picking::index_select};
  for (int d = 0; d < dim; ++d) lines.outer *= shape[d];
  for (int d = dim + 1; d < shape.rank(); ++d) lines.inner *= shape[d];
  return lines;
}

/// Throws unless `shape` and the shape `x` are equal in all dimensions except `dim`.
void check_shape(Picking picking, const char* what, const Shape& shape, const Shape& x, int dim) {
  bool fits = shape.rank() == x.rank();
  for (int d = 0; fits && d < x.rank(); ++d) fits = d == dim || shape[d] == x[d];
  TESSERA_CHECK(fits, "{}: {} has shape {}, expected {} except in dimension {}", name_of(picking),
                what, shape, x, dim);
}

void check_index(const Tensor& index, const Lines& lines) {
  const char* name = name_of(lines.picking);
  TESSERA_CHECK(index.dtype() == DType::i32, "{}: index has dtype {}, expected i32", name,
                dtype_name(index.dtype()));
  if (!index.device().is_cpu()) return;  // the kernel checks, so the host need not wait for the GPU
  const auto values = index.values<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_CHECK(0 <= values[i] && values[i] < lines.size,
                  "{}: index {} at position {} is outside [0, {})", name, values[i], i, lines.size);
  }
}

/// Computes a scatter_add in f32. begin(context, wide) must write the initial values to `wide`, an
/// f32 tensor. Then the elements of `source` are added to `wide` by index. The result is in `sum`,
/// rounded once if `sum` is not f32.
template <class Begin>
void scatter(const Tensor& sum, const Tensor& source, const Tensor& index, const Lines& lines,
             const Begin& begin) {
  const Context context = current_context(sum.device());
  const bool separate = sum.dtype() != DType::f32;
  const Tensor wide = separate ? context.workspace(sum.shape()) : sum;
  begin(context, wide);
  kernels::scatter_lines(context, wide, source, index, lines);
  if (separate) kernels::convert(context, sum, wide);
}

/// Computes the gradient dx for a y that was picked from x by index.
void picked_gradient(const Tensor& dx, const Tensor& dy, const Tensor& index, const Lines& lines) {
  // The largest number of elements in a row for which embedding_backward is used. For longer rows,
  // scatter has enough threads to keep the device busy, because it uses one thread per element of a
  // row. Also, longer rows could make the CUDA grid of embedding_backward larger than CUDA allows.
  constexpr int64_t longest_row = int64_t{1} << 20;
  if (lines.outer == 1 && lines.inner <= longest_row && (lines.shared || lines.inner == 1)) {
    // Whole rows of a matrix (size, inner) were picked, as from an embedding's table. scatter would
    // use only `inner` threads, one per column. embedding_backward keeps more threads busy.
    return kernels::embedding_backward(
        current_context(dx.device()), name_of(lines.picking), dx.view({lines.size, lines.inner}),
        dy.view({lines.count, lines.inner}), index.view({lines.count}), false);
  }
  scatter(dx, dy, index, lines,
          [](const Context& context, const Tensor& wide) { kernels::fill(context, wide, 0.0f); });
}

Tensor pick(const Tensor& x, const Tensor& index, const Shape& shape, const Lines& lines) {
  const char* name = name_of(lines.picking);
  check_index(index, lines);
  const trace::Scope scope(name);
  const InUse in_use({&x, &index});
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::gather_lines(current_context(x.device()), y, x, index, lines);
  return record(name, y, {x},
                [index = saved(index), lines](const Tensor& dy, InputGradients& grads) {
                  picked_gradient(grads.destination(0), dy, index, lines);
                });
}

}  // namespace

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  const int at = dimension("index_select", x.shape(), dim);
  TESSERA_CHECK(index.rank() == 1, "index_select: index has shape {}, expected (n)", index.shape());
  Shape shape;
  for (int d = 0; d < x.rank(); ++d) shape.push_back(d == at ? index.size(0) : x.size(d));
  return pick(x, index, shape, lines_of(Picking::index_select, x.shape(), at, index.size(0)));
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  const int at = dimension("gather", x.shape(), dim);
  check_shape(Picking::gather, "index", index.shape(), x.shape(), at);
  return pick(x, index, index.shape(), lines_of(Picking::gather, x.shape(), at, index.size(at)));
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  const int at = dimension("scatter_add", x.shape(), dim);
  check_shape(Picking::scatter_add, "index", index.shape(), x.shape(), at);
  TESSERA_CHECK(source.shape() == index.shape(),
                "scatter_add: source has shape {}, expected {}, the shape of index", source.shape(),
                index.shape());
  TESSERA_CHECK(source.dtype() == x.dtype(), "scatter_add: source has dtype {}, expected {}",
                dtype_name(source.dtype()), dtype_name(x.dtype()));
  const Lines lines = lines_of(Picking::scatter_add, x.shape(), at, index.size(at));
  check_index(index, lines);
  const trace::Scope scope("scatter_add");
  const InUse in_use({&x, &source, &index});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  scatter(y, source, index, lines,
          [&](const Context& context, const Tensor& wide) { kernels::convert(context, wide, x); });
  return record("scatter_add", y, {x, source},
                [index = saved(index), lines](const Tensor& dy, InputGradients& grads) {
                  if (grads.wanted(0)) grads.pass(0, dy);
                  if (!grads.wanted(1)) return;
                  kernels::gather_lines(current_context(dy.device()), grads.destination(1), dy,
                                        index, lines);
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void gather_lines(const Context&, const Tensor& y, const Tensor& x, const Tensor& index,
                  const Lines& lines) {
  const int32_t* at = index.data<int32_t>();
  visit_float(x.dtype(), name_of(lines.picking), [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_ranges(lines.outer * lines.count, lines.inner, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = in + row / lines.count * lines.size * lines.inner;
        T* to = out + row * lines.inner;
        if (lines.shared) {
          std::copy_n(from + at[row % lines.count] * lines.inner, lines.inner, to);
          continue;
        }
        const int32_t* own = at + row * lines.inner;
        for (int64_t i = 0; i < lines.inner; ++i) to[i] = from[own[i] * lines.inner + i];
      }
    });
  });
}

void scatter_lines(const Context&, const Tensor& sum, const Tensor& source, const Tensor& index,
                   const Lines& lines) {
  const int32_t* at = index.data<int32_t>();
  float* out = sum.data<float>();
  visit_float(source.dtype(), "scatter_add", [&]<class T>() {
    const T* in = source.data<T>();
    // Each thread has its own range of lines (o, :, i), so no two threads add to the same element.
    parallel_ranges(lines.outer * lines.inner, lines.count, [=](int64_t begin, int64_t end) {
      for (int64_t o = begin / lines.inner; o * lines.inner < end; ++o) {
        const int64_t first = std::max(int64_t{0}, begin - o * lines.inner);
        const int64_t last = std::min(lines.inner, end - o * lines.inner);
        float* to = out + o * lines.size * lines.inner;
        for (int64_t j = 0; j < lines.count; ++j) {
          const int64_t row = o * lines.count + j;
          const T* from = in + row * lines.inner;
          for (int64_t i = first; i < last; ++i) {
            const int64_t picked = lines.shared ? at[j] : at[row * lines.inner + i];
            to[picked * lines.inner + i] += float(from[i]);
          }
        }
      }
    });
  });
}

}  // namespace tessera::cpu
