#include "data/images/image_resize.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tessera::data {
namespace {

// The number of fraction bits of a weight. The 32 bits of a sum of weighted pixel values are these
// 22 fraction bits, 8 integer bits, a spare bit and the sign.
constexpr int weight_bits = 22;
constexpr int32_t half = 1 << (weight_bits - 1);

// Describes a resize in one direction: for each pixel of the result, the range of image pixels that
// contribute to it, and the weights of these image pixels.
struct Taps {
  struct Range {
    int64_t first = 0;  // pixel of the image
    int64_t count = 0;
    size_t weights = 0;  // index of the first weight in Taps::weights
  };
  std::vector<Range> ranges;
  std::vector<int32_t> weights;

  int64_t begin() const { return ranges.front().first; }
  int64_t end() const { return ranges.back().first + ranges.back().count; }
};

// Computes the taps that resize [start, start + length) to `size` pixels. In this direction, the
// image has `limit` pixels.
Taps taps(double start, double length, int64_t size, int64_t limit) {
  Taps result;
  const double scale = length / static_cast<double>(size);
  const double support = std::max(scale, 1.0);
  std::vector<double> shares;
  for (int64_t i = 0; i < size; ++i) {
    const double center = start + (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::clamp<int64_t>(std::llround(center - support), 0, limit - 1);
    const auto end = std::clamp<int64_t>(std::llround(center + support), first + 1, limit);
    double sum = 0;
    shares.clear();
    for (int64_t j = first; j < end; ++j) {
      const double distance = std::abs(static_cast<double>(j) + 0.5 - center) / support;
      shares.push_back(std::max(0.0, 1 - distance));
      sum += shares.back();
    }
    result.ranges.push_back({first, end - first, result.weights.size()});
    for (const double share : shares) {
      result.weights.push_back(static_cast<int32_t>(share / sum * (1 << weight_bits) + 0.5));
    }
  }
  return result;
}

uint8_t value_of(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

template <int channels>
void resize_row(const uint8_t* in, const Taps& columns, uint8_t* out) {
  for (const Taps::Range& range : columns.ranges) {
    int32_t sums[channels];
    std::fill_n(sums, channels, half);
    const uint8_t* pixel = in + range.first * channels;
    const int32_t* weights = columns.weights.data() + range.weights;
    for (int64_t k = 0; k < range.count; ++k, pixel += channels) {
      for (int c = 0; c < channels; ++c) sums[c] += weights[k] * pixel[c];
    }
    for (int c = 0; c < channels; ++c) *out++ = value_of(sums[c]);
  }
}

}  // namespace

void resize_image(const ImageView& image, const ImageBox& box, int64_t height, int64_t width,
                  std::vector<uint8_t>& rows, uint8_t* out) {
  const auto [image_height, image_width, channels] = image.shape;
  TESSERA_CHECK(channels == 1 || channels == 3, "resize: {} channels, expected 1 or 3", channels);
  const Taps down = taps(box.top, box.height, height, image_height);
  const Taps across = taps(box.left, box.width, width, image_width);
  // The first pass resizes along the rows, and skips rows that the box does not need. The second
  // pass resizes along the columns.
  const int64_t row_values = width * channels;
  rows.resize(static_cast<size_t>((down.end() - down.begin()) * row_values));
  for (int64_t y = down.begin(); y < down.end(); ++y) {
    const uint8_t* in = image.pixels + y * image_width * channels;
    uint8_t* row = rows.data() + (y - down.begin()) * row_values;
    if (channels == 3) {
      resize_row<3>(in, across, row);
    } else {
      resize_row<1>(in, across, row);
    }
  }
  std::vector<int32_t> sums(static_cast<size_t>(row_values));
  for (const Taps::Range& range : down.ranges) {
    std::fill(sums.begin(), sums.end(), half);
    for (int64_t k = 0; k < range.count; ++k) {
      const int32_t weight = down.weights[range.weights + static_cast<size_t>(k)];
      const uint8_t* row = rows.data() + (range.first - down.begin() + k) * row_values;
#pragma omp simd
      for (int64_t x = 0; x < row_values; ++x) sums[static_cast<size_t>(x)] += weight * row[x];
    }
    for (const int32_t sum : sums) *out++ = value_of(sum);
  }
}

}  // namespace tessera::data
