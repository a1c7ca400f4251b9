// Shared by max_pool and avg_pool: the checks, the pixels that a window covers, the windows that
// cover a pixel, and the loop over pixels on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/context.h"
#include "core/ops/options.h"

namespace tessera {

/// One axis of an image, its rows or its columns, and the windows along it.
struct PoolAxis {
  int64_t pixels;
  int64_t windows;
  int64_t kernel;
  int64_t stride;
  int64_t padding;

  /// First pixel of window `w`; negative if the window begins in the padding.
  constexpr int64_t start(int64_t w) const { return w * stride - padding; }
  /// The pixels of window `w` within the image: [first_pixel, end_pixel).
  constexpr int64_t first_pixel(int64_t w) const { return std::max<int64_t>(0, start(w)); }
  constexpr int64_t end_pixel(int64_t w) const { return std::min(pixels, start(w) + kernel); }
  /// The windows that cover pixel `p`: [first_window, end_window).
  constexpr int64_t first_window(int64_t p) const {
    return p + padding < kernel ? 0 : (p + padding - kernel) / stride + 1;
  }
  constexpr int64_t end_window(int64_t p) const {
    return std::min(windows, (p + padding) / stride + 1);
  }
};

/// The sizes of a pooling that turns images (N, H, W, C) into (N, H', W', C).
struct Pooling {
  Pooling(const Tensor& x, const Tensor& y, const PoolOptions& options)
      : channels(x.size(3)),
        rows{x.size(1), y.size(1), options.kernel.height, options.stride.height,
             options.padding.height},
        columns{x.size(2), y.size(2), options.kernel.width, options.stride.width,
                options.padding.width} {}

  int64_t window_pixels() const { return rows.kernel * columns.kernel; }
  float window_share() const { return 1.0f / static_cast<float>(window_pixels()); }

  int64_t channels;
  PoolAxis rows;
  PoolAxis columns;
};

namespace ops {

/// Throws unless x is (N, H, W, C) and the options fit x. Returns the shape (N, H', W', C) of the
/// result.
Shape checked_pool_shape(std::string_view operation, const Tensor& x, const PoolOptions& options);

}  // namespace ops

namespace cpu {

/// Number of channels computed at a time. The sums or maxima of 256 channels stay in the L1 cache.
inline constexpr int64_t pool_channels = 256;

/// Channels [channel, channel + count) of a pixel, which begin at element `at` of the tensor.
struct PixelPart {
  int64_t image, row, column;
  int64_t channel, count;
  int64_t at;
};

/// Calls body(part) for all parts of all pixels of a tensor of shape (N, H, W, C), split over
/// threads. `cost` is the number of operations per element.
template <class Body>
void parallel_pixels(const Shape& shape, int64_t cost, Body&& body) {
  const int64_t height = shape[1], width = shape[2], channels = shape[3];
  parallel_ranges(shape[0] * height * width, cost * channels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t channel = 0; channel < channels; channel += pool_channels) {
        body(PixelPart{i / width / height, i / width % height, i % width, channel,
                       std::min(pool_channels, channels - channel), i * channels + channel});
      }
    }
  });
}

}  // namespace cpu
}  // namespace tessera
