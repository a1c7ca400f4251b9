// avg_pool: x (N, H, W, C) -> y (N, H', W', C), the mean over each window of kh x kw pixels. Pixels
// of the padding are zeros. The gradient of a pixel is the sum of dy over the windows that cover
// the pixel, divided by the size of a window.
#include "core/autograd.h"
#include "core/image_ops.h"
#include "core/ops.h"
#include "core/ops/avg_pool.h"
#include "core/ops/pool.h"
#include "core/trace.h"

namespace tessera::ops {

Shape checked_pool_shape(std::string_view operation, const Tensor& x, const PoolOptions& options) {
  TESSERA_CHECK(x.rank() == 4, "{}: x has shape {}, expected (N, H, W, C)", operation, x.shape());
  const auto windows = [&](std::string_view axis, int64_t pixels, int64_t kernel, int64_t stride,
                           int64_t padding) {
    // With these limits, 2 * padding and the number of pixels in a window cannot overflow.
    TESSERA_CHECK(1 <= kernel && kernel <= INT32_MAX && 1 <= stride && stride <= INT32_MAX,
                  "{}: the {} of the kernel is {} and of the stride {}, expected 1 to {}",
                  operation, axis, kernel, stride, INT32_MAX);
    TESSERA_CHECK(padding >= 0 && padding <= kernel / 2,
                  "{}: the {} of the padding is {}, expected 0 to half of the kernel's {}",
                  operation, axis, padding, kernel);
    TESSERA_CHECK(pixels > 0, "{}: x has shape {}, expected images of at least 1 x 1 pixels",
                  operation, x.shape());
    TESSERA_CHECK(pixels + 2 * padding >= kernel,
                  "{}: the {} of the kernel is {}, expected at most {}, that of x {} with its "
                  "padding",
                  operation, axis, kernel, pixels + 2 * padding, x.shape());
    return (pixels + 2 * padding - kernel) / stride + 1;
  };
  const auto& [kernel, stride, padding] = options;
  return {x.size(0), windows("height", x.size(1), kernel.height, stride.height, padding.height),
          windows("width", x.size(2), kernel.width, stride.width, padding.width), x.size(3)};
}

Tensor avg_pool(const Tensor& x, const PoolOptions& options) {
  const Shape shape = checked_pool_shape("avg_pool", x, options);
  const trace::Scope scope("avg_pool");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::avg_pool_forward(current_context(x.device()), y, x, options);
  return record("avg_pool", y, {x}, [options](const Tensor& dy, InputGradients& grads) {
    kernels::avg_pool_backward(current_context(dy.device()), grads.destination(0), dy, options);
  });
}

Tensor global_avg_pool(const Tensor& x) {
  TESSERA_CHECK(x.rank() == 4 && x.size(1) > 0 && x.size(2) > 0,
                "global_avg_pool: x has shape {}, expected (N, H, W, C) with H, W > 0", x.shape());
  // avg_pool adds up the pixels one after the other in f32. With a million equal pixels, the
  // rounding error would reach 1 %. mean() adds up in f64.
  constexpr int64_t max_pixels = 1024;
  if (x.size(1) * x.size(2) > max_pixels) return mean(x, {1, 2});
  const Tensor y = avg_pool(x, {.kernel = {x.size(1), x.size(2)}});
  return reshape(y, {x.size(0), x.size(3)});
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

/// Rows [row, row_end) and columns [column, column_end) of an image of `width` columns.
struct PixelRange {
  int64_t row, row_end, column, column_end, width;
};

/// For each of `count` consecutive channels, adds up the values of the range's pixels, row by row,
/// and writes factor * sum to `to` (count). A pixel has `channels` channels. `from` points to the
/// first of the `count` channels in the image's first pixel.
template <class T>
void write_sum(T* to, const T* from, PixelRange range, int64_t channels, int64_t count,
               float factor) {
  float sum[pool_channels];
  std::fill_n(sum, count, 0.0f);
  for (int64_t row = range.row; row < range.row_end; ++row) {
    for (int64_t column = range.column; column < range.column_end; ++column) {
      const T* pixel = from + (row * range.width + column) * channels;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sum[i] += float(pixel[i]);
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = rounded<T>(sum[i] * factor);
}

}  // namespace

void avg_pool_forward(const Context&, const Tensor& y, const Tensor& x,
                      const PoolOptions& options) {
  const Pooling pool(x, y, options);
  const auto& [channels, rows, columns] = pool;
  visit_float(x.dtype(), "avg_pool", [&]<class T>() {
    parallel_pixels(y.shape(), pool.window_pixels(), [&](const PixelPart& part) {
      const int64_t image = part.image * rows.pixels * columns.pixels * channels;
      write_sum(y.data<T>() + part.at, x.data<T>() + image + part.channel,
                {rows.first_pixel(part.row), rows.end_pixel(part.row),
                 columns.first_pixel(part.column), columns.end_pixel(part.column), columns.pixels},
                channels, part.count, pool.window_share());
    });
  });
}

void avg_pool_backward(const Context&, const Tensor& dx, const Tensor& dy,
                       const PoolOptions& options) {
  const Pooling pool(dx, dy, options);
  const auto& [channels, rows, columns] = pool;
  visit_float(dx.dtype(), "avg_pool", [&]<class T>() {
    parallel_pixels(dx.shape(), 1, [&](const PixelPart& part) {
      const int64_t image = part.image * rows.windows * columns.windows * channels;
      write_sum(dx.data<T>() + part.at, dy.data<T>() + image + part.channel,
                {rows.first_window(part.row), rows.end_window(part.row),
                 columns.first_window(part.column), columns.end_window(part.column),
                 columns.windows},
                channels, part.count, pool.window_share());
    });
  });
}

}  // namespace tessera::cpu
