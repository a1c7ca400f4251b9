// avg_pool on CUDA. A thread computes n neighbouring channels of one window (forward) or of one
// pixel (backward). The thread adds up the pixels under the window, or the windows over the pixel,
// row by row, as on the CPU.
#include "core/ops/avg_pool.h"
#include "core/ops/pool.cuh"

namespace tessera::cuda {

namespace {

/// In the forward, `to` holds windows and `from` holds pixels. In the backward, `to` holds pixels
/// and `from` holds windows.
template <class T>
struct PoolSum {
  T* to;
  const T* from;
  Pooling pool;
  PixelGrid grid;
  float factor;
};

template <bool forward, class T, int n, bool aligned>
__global__ void __launch_bounds__(PixelGrid::max_threads, 4) pool_sum_kernel(PoolSum<T> args) {
  const PoolAxis& rows = args.pool.rows;
  const PoolAxis& columns = args.pool.columns;
  const auto begin = [](const PoolAxis& axis, int64_t i) {
    return forward ? axis.first_pixel(i) : axis.first_window(i);
  };
  const auto end = [](const PoolAxis& axis, int64_t i) {
    return forward ? axis.end_pixel(i) : axis.end_window(i);
  };
  const int64_t height = forward ? rows.pixels : rows.windows;
  const int64_t width = forward ? columns.pixels : columns.windows;
  args.grid.template visit<n>([&](const PixelPart& part) {
    Floats<n> sum = {};
    for (int64_t r = begin(rows, part.row); r < end(rows, part.row); ++r) {
      for (int64_t c = begin(columns, part.column); c < end(columns, part.column); ++c) {
        const int64_t pixel = (part.image * height + r) * width + c;
        const T* from = args.from + pixel * args.pool.channels + part.channel;
        const Floats<n> values = widened(load_elements<aligned, n>(from));
        unrolled<n>([&](int i) { sum.value[i] += values.value[i]; });
      }
    }
    unrolled<n>([&](int i) { sum.value[i] *= args.factor; });
    store_elements<aligned>(args.to + part.at, sum);
  });
}

template <bool forward>
void launch_pool_sum(const Context& context, const char* name, const Tensor& to, const Tensor& from,
                     const Pooling& pool) {
  if (to.elements() == 0) return;
  visit_float(to.dtype(), "avg_pool", [&]<class T>() {
    visit_access<neighbours<T>>(
        pool.channels,
        [&]<int n, bool aligned>() {
          const PixelGrid grid(to.shape(), n);
          launch(context, name, grid.launch_shape(), pool_sum_kernel<forward, T, n, aligned>,
                 PoolSum<T>{to.data<T>(), from.data<T>(), pool, grid, pool.window_share()});
        },
        to.data<T>(), from.data<T>());
  });
}

}  // namespace

void avg_pool_forward(const Context& context, const Tensor& y, const Tensor& x,
                      const PoolOptions& options) {
  launch_pool_sum<true>(context, "avg_pool_forward", y, x, Pooling(x, y, options));
}

void avg_pool_backward(const Context& context, const Tensor& dx, const Tensor& dy,
                       const PoolOptions& options) {
  launch_pool_sum<false>(context, "avg_pool_backward", dx, dy, Pooling(dx, dy, options));
}

}  // namespace tessera::cuda
