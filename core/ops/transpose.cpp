// transpose: y (..., n, m) = x (..., m, n), a copy.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/transpose.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
Shape transposed(const Shape& shape) {
  Shape result;
  for (int i = 0; i < shape.rank() - 2; ++i) result.push_back(shape[i]);
  result.push_back(shape[-1]);
  result.push_back(shape[-2]);
  return result;
}
}  // namespace

Tensor transpose(const Tensor& x) {
  TESSERA_CHECK(x.rank() >= 2, "transpose: shape {}, expected at least two dimensions", x.shape());
  const trace::Scope scope("transpose");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(transposed(x.shape()), x.dtype(), x.device());
  kernels::transpose(current_context(x.device()), y, x);
  return record("transpose", y, {x}, [](const Tensor& dy, InputGradients& grads) {
    kernels::transpose(current_context(dy.device()), grads.destination(0), dy);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {
// A tile has 16 x 16 elements. A row of 16 f32 is one cache line (64 bytes). A row of a 16-bit type
// fills only half a line, but tiles of 32 x 32 were slower for 16-bit types.
constexpr int64_t tile = 16;

template <class T>
void transpose_tile_row(T* y, const T* x, int64_t m, int64_t n, int64_t row) {
  const int64_t row_end = std::min(row + tile, m);
  for (int64_t column = 0; column < n; column += tile) {
    const int64_t column_end = std::min(column + tile, n);
    for (int64_t j = column; j < column_end; ++j) {
      for (int64_t i = row; i < row_end; ++i) y[j * m + i] = x[i * n + j];
    }
  }
}
}  // namespace

void transpose(const Context&, const Tensor& y, const Tensor& x) {
  if (x.elements() == 0) return;
  const int64_t m = x.size(-2);
  const int64_t n = x.size(-1);
  const int64_t tile_rows = (m + tile - 1) / tile;
  const int64_t matrices = x.elements() / (m * n);  // product of leading dimensions
  visit_float(x.dtype(), "transpose", [&]<class T>() {
    T* out = y.data<T>();
    const T* in = x.data<T>();
    parallel_ranges(matrices * tile_rows, tile * n, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t offset = i / tile_rows * m * n;
        transpose_tile_row(out + offset, in + offset, m, n, i % tile_rows * tile);
      }
    });
  });
}

}  // namespace tessera::cpu
