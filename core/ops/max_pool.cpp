// max_pool: x (N, H, W, C) -> y (N, H', W', C), the maximum over each window. NaN is larger
// than all numbers. `places` (N, H', W', C) says which pixel of the window has the maximum, so the
// gradient needs neither x nor y. Each pixel of dx gathers dy from the windows in which the pixel
// was the maximum.
#include "core/autograd.h"
#include "core/image_ops.h"
#include "core/ops/max_pool.h"
#include "core/ops/pool.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor max_pool(const Tensor& x, const PoolOptions& options) {
  const Shape shape = checked_pool_shape("max_pool", x, options);
  const auto& [height, width] = options.kernel;
  TESSERA_CHECK(height <= 255 && width <= 255 && height * width <= 255,
                "max_pool: a window of {} x {} pixels, expected at most 255", height, width);
  const trace::Scope scope("max_pool");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  const Tensor places = Tensor::empty(shape, DType::u8, x.device());
  kernels::max_pool_forward(current_context(x.device()), y, places, x, options);
  return record("max_pool", y, {x}, [places, options](const Tensor& dy, InputGradients& grads) {
    kernels::max_pool_backward(current_context(dy.device()), grads.destination(0), dy, places,
                               options);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

/// The running maximum of a window and the maximum's pixel, for up to pool_channels channels.
struct Maximum {
  float value[pool_channels];
  int32_t place[pool_channels];

  template <class T>
  void start(const T* pixel, int32_t here, int64_t count) {
    for (int64_t i = 0; i < count; ++i) value[i] = float(pixel[i]);
    std::fill_n(place, count, here);
  }
  template <class T>
  void add(const T* pixel, int32_t here, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float next = float(pixel[i]);
      // True if `next` is larger or NaN. A NaN stays the maximum.
      const bool larger = !(next <= value[i]) & (value[i] == value[i]);
      value[i] = larger ? next : value[i];
      place[i] = larger ? here : place[i];
    }
  }
};

/// Writes the maxima and their places for `part`: some channels of a pixel of y. A pixel of y has
/// the maxima of one window of x. `x` points to the image's first pixel, at the part's first
/// channel.
template <class T>
void write_maximum(T* y, uint8_t* places, const T* x, const Pooling& pool, const PixelPart& part) {
  const auto& [channels, rows, columns] = pool;
  const int64_t top = rows.first_pixel(part.row), left = columns.first_pixel(part.column);
  Maximum maximum;
  for (int64_t row = top; row < rows.end_pixel(part.row); ++row) {
    for (int64_t column = left; column < columns.end_pixel(part.column); ++column) {
      const T* pixel = x + (row * columns.pixels + column) * channels;
      const auto here = static_cast<int32_t>((row - rows.start(part.row)) * columns.kernel +
                                             column - columns.start(part.column));
      if (row == top && column == left) {
        maximum.start(pixel, here, part.count);
      } else {
        maximum.add(pixel, here, part.count);
      }
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < part.count; ++i) {
    y[i] = rounded<T>(maximum.value[i]);
    places[i] = static_cast<uint8_t>(maximum.place[i]);
  }
}

/// Writes dx of `part`: some channels of a pixel of x. `dy` and `places` point to the image's first
/// window, at the part's first channel.
template <class T>
void gather_gradient(T* dx, const T* dy, const uint8_t* places, const Pooling& pool,
                     const PixelPart& part) {
  const auto& [channels, rows, columns] = pool;
  float sum[pool_channels];
  std::fill_n(sum, part.count, 0.0f);
  for (int64_t r = rows.first_window(part.row); r < rows.end_window(part.row); ++r) {
    for (int64_t c = columns.first_window(part.column); c < columns.end_window(part.column); ++c) {
      const int64_t window = (r * columns.windows + c) * channels;
      const auto here = static_cast<uint8_t>((part.row - rows.start(r)) * columns.kernel +
                                             part.column - columns.start(c));
#pragma omp simd
      for (int64_t i = 0; i < part.count; ++i) {
        sum[i] += places[window + i] == here ? float(dy[window + i]) : 0.0f;
      }
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < part.count; ++i) dx[i] = rounded<T>(sum[i]);
}

}  // namespace

void max_pool_forward(const Context&, const Tensor& y, const Tensor& places, const Tensor& x,
                      const PoolOptions& options) {
  const Pooling pool(x, y, options);
  const int64_t image = pool.rows.pixels * pool.columns.pixels * pool.channels;
  visit_float(x.dtype(), "max_pool", [&]<class T>() {
    parallel_pixels(y.shape(), pool.window_pixels(), [&](const PixelPart& part) {
      write_maximum(y.data<T>() + part.at, places.data<uint8_t>() + part.at,
                    x.data<T>() + part.image * image + part.channel, pool, part);
    });
  });
}

void max_pool_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& places,
                       const PoolOptions& options) {
  const Pooling pool(dx, dy, options);
  const int64_t image = pool.rows.windows * pool.columns.windows * pool.channels;
  visit_float(dx.dtype(), "max_pool", [&]<class T>() {
    parallel_pixels(dx.shape(), 1, [&](const PixelPart& part) {
      const int64_t first = part.image * image + part.channel;
      gather_gradient(dx.data<T>() + part.at, dy.data<T>() + first,
                      places.data<uint8_t>() + first, pool, part);
    });
  });
}

}  // namespace tessera::cpu
