// max_pool on CUDA. Forward: a thread finds the maximum of n channels over a window. Backward: a
// thread gathers the gradient of n channels of a pixel from the windows in which the pixel was the
// maximum.
#include "core/ops/max_pool.h"
#include "core/ops/pool.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct MaxPool {
  T* y;
  uint8_t* places;
  const T* x;
  Pooling pool;
  PixelGrid grid;
};

template <class T, int n, bool aligned>
__global__ void __launch_bounds__(PixelGrid::max_threads, 3) max_pool_kernel(MaxPool<T> args) {
  const PoolAxis& rows = args.pool.rows;
  const PoolAxis& columns = args.pool.columns;
  args.grid.template visit<n>([&](const PixelPart& part) {
    const int64_t top = rows.first_pixel(part.row), left = columns.first_pixel(part.column);
    Floats<n> maximum = {};
    Elements<uint8_t, n> places = {};
    for (int64_t r = top; r < rows.end_pixel(part.row); ++r) {
      for (int64_t c = left; c < columns.end_pixel(part.column); ++c) {
        const int64_t pixel = (part.image * rows.pixels + r) * columns.pixels + c;
        const T* from = args.x + pixel * args.pool.channels + part.channel;
        const Floats<n> values = widened(load_elements<aligned, n>(from));
        const auto here = static_cast<uint8_t>((r - rows.start(part.row)) * columns.kernel + c -
                                               columns.start(part.column));
        const bool first = r == top && c == left;
        unrolled<n>([&](int i) {
          const float best = maximum.value[i];
          // True for the first value, and for a value that is larger or NaN. A NaN stays the
          // maximum.
          if (first || (!(values.value[i] <= best) && best == best)) {
            maximum.value[i] = values.value[i];
            places.value[i] = here;
          }
        });
      }
    }
    store_elements<aligned>(args.y + part.at, maximum);
    if constexpr (aligned) {
      *reinterpret_cast<Elements<uint8_t, n>*>(args.places + part.at) = places;
    } else {
      unrolled<n>([&](int i) { args.places[part.at + i] = places.value[i]; });
    }
  });
}

template <class T>
struct MaxPoolBackward {
  T* dx;
  const T* dy;
  const uint8_t* places;
  Pooling pool;
  PixelGrid grid;
};

template <class T, int n, bool aligned>
__global__ void __launch_bounds__(PixelGrid::max_threads, 3)
    max_pool_backward_kernel(MaxPoolBackward<T> args) {
  const PoolAxis& rows = args.pool.rows;
  const PoolAxis& columns = args.pool.columns;
  args.grid.template visit<n>([&](const PixelPart& part) {
    Floats<n> sum = {};
    for (int64_t r = rows.first_window(part.row); r < rows.end_window(part.row); ++r) {
      for (int64_t c = columns.first_window(part.column); c < columns.end_window(part.column);
           ++c) {
        const int64_t window = (part.image * rows.windows + r) * columns.windows + c;
        const int64_t at = window * args.pool.channels + part.channel;
        const auto places = load_elements<aligned, n>(args.places + at);
        const Floats<n> dy = widened(load_elements<aligned, n>(args.dy + at));
        const auto here = static_cast<uint8_t>((part.row - rows.start(r)) * columns.kernel +
                                               part.column - columns.start(c));
        unrolled<n>([&](int i) { sum.value[i] += places.value[i] == here ? dy.value[i] : 0.0f; });
      }
    }
    store_elements<aligned>(args.dx + part.at, sum);
  });
}

}  // namespace

void max_pool_forward(const Context& context, const Tensor& y, const Tensor& places,
                      const Tensor& x, const PoolOptions& options) {
  if (y.elements() == 0) return;
  const Pooling pool(x, y, options);
  visit_float(x.dtype(), "max_pool", [&]<class T>() {
    uint8_t* to = places.data<uint8_t>();
    visit_access<neighbours<T>>(
        pool.channels,
        [&]<int n, bool aligned>() {
          const PixelGrid grid(y.shape(), n);
          launch(context, "max_pool_forward", grid.launch_shape(), max_pool_kernel<T, n, aligned>,
                 MaxPool<T>{y.data<T>(), to, x.data<T>(), pool, grid});
        },
        y.data<T>(), to, x.data<T>());
  });
}

void max_pool_backward(const Context& context, const Tensor& dx, const Tensor& dy,
                       const Tensor& places, const PoolOptions& options) {
  if (dx.elements() == 0) return;
  const Pooling pool(dx, dy, options);
  visit_float(dx.dtype(), "max_pool", [&]<class T>() {
    const uint8_t* from = places.data<uint8_t>();
    visit_access<neighbours<T>>(
        pool.channels,
        [&]<int n, bool aligned>() {
          const PixelGrid grid(dx.shape(), n);
          launch(context, "max_pool_backward", grid.launch_shape(),
                 max_pool_backward_kernel<T, n, aligned>,
                 MaxPoolBackward<T>{dx.data<T>(), dy.data<T>(), from, pool, grid});
        },
        dx.data<T>(), dy.data<T>(), from);
  });
}

}  // namespace tessera::cuda
