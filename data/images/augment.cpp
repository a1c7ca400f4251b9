#include "data/images/augment.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "core/random.h"

namespace tessera::data {
namespace {

constexpr int64_t padding = 4;
constexpr double least_area = 0.08;
constexpr double most_ratio = 4.0 / 3;

// Returns a number that is uniform in [0, 1).
double uniform(RandomStream& stream) { return static_cast<double>(stream.next_u32()) * 0x1p-32; }

ImageBox middle(const ImageShape& image, double height, double width) {
  return {(static_cast<double>(image.height) - height) / 2,
          (static_cast<double>(image.width) - width) / 2, height, width};
}

// Draws a part of the image, in whole pixels, as torchvision's RandomResizedCrop does. After ten
// draws that do not fit, returns the largest part in the middle with an aspect ratio of 3:4 to 4:3.
// This part is not rounded to whole pixels.
ImageBox random_part(const ImageShape& image, RandomStream& stream) {
  const auto area = static_cast<double>(image.height * image.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double part = area * (least_area + (1 - least_area) * uniform(stream));
    const double ratio = std::exp(std::log(most_ratio) * (2 * uniform(stream) - 1));
    const int64_t width = std::llround(std::sqrt(part * ratio));
    const int64_t height = std::llround(std::sqrt(part / ratio));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    const uint64_t top = stream.below(static_cast<uint64_t>(image.height - height + 1));
    const uint64_t left = stream.below(static_cast<uint64_t>(image.width - width + 1));
    return {static_cast<double>(top), static_cast<double>(left), static_cast<double>(height),
            static_cast<double>(width)};
  }
  const auto height = static_cast<double>(image.height);
  const auto width = static_cast<double>(image.width);
  return middle(image, std::min(height, width * most_ratio), std::min(width, height * most_ratio));
}

// Returns the part of an image that evaluation uses: a box in the middle, with the input's aspect
// ratio. Height and width of the box are `share` times those of the largest such box.
ImageBox evaluated_part(const ImageShape& image, const ImageShape& input, double share) {
  const double shorter =
      std::min(static_cast<double>(image.height) / static_cast<double>(input.height),
               static_cast<double>(image.width) / static_cast<double>(input.width));
  const double scale = share * shorter;
  return middle(image, scale * static_cast<double>(input.height),
                scale * static_cast<double>(input.width));
}

}  // namespace

ImageTransform::ImageTransform(const ImageTransformOptions& options) : options_(options) {
  const auto channels = static_cast<size_t>(options.shape.channels);
  const auto& [mean, std] = options.norm;
  TESSERA_CHECK(mean.size() == channels && std.size() == channels,
                "images: {} means and {} standard deviations for {} channels", mean.size(),
                std.size(), channels);
  for (size_t c = 0; c < channels; ++c) {
    for (int value = 0; value < 256; ++value) {
      wide_.push_back((static_cast<float>(value) / 255 - mean[c]) / std[c]);
    }
  }
  visit_float(options.dtype, "images", [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      for (const float value : wide_) narrow_.push_back(rounded<T>(value).bits);
    }
  });
}

Augmentation ImageTransform::draw(const ImageShape& image_shape, int64_t epoch,
                                  int64_t sample) const {
  Augmentation result;
  TESSERA_CHECK(sample < int64_t{1} << 32, "images: sample {}, expected less than 2^32", sample);
  RandomStream stream(options_.seed, "augmentation",
                      static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(sample));
  result.mirrored = options_.flips && stream.below(2) == 1;
  if (options_.resizes) {
    result.box = random_part(image_shape, stream);
  } else {
    result.top = static_cast<int64_t>(stream.below(2 * padding + 1)) - padding;
    result.left = static_cast<int64_t>(stream.below(2 * padding + 1)) - padding;
  }
  return result;
}

void ImageTransform::train(const ImageView& image, int64_t epoch, int64_t sample,
                           ImageMemory& memory, void* out) const {
  if (!options_.augments) return evaluate(image, memory, out);
  const Augmentation drawn = draw(image.shape, epoch, sample);
  place(options_.resizes ? resize(image, drawn.box, memory) : image, drawn, out);
}

void ImageTransform::evaluate(const ImageView& image, ImageMemory& memory, void* out) const {
  if (!options_.resizes) return place(image, {}, out);
  const ImageBox box = evaluated_part(image.shape, options_.shape, options_.evaluated_share);
  place(resize(image, box, memory), {}, out);
}

ImageView ImageTransform::resize(const ImageView& image, const ImageBox& box,
                                 ImageMemory& memory) const {
  // The number of channels stays that of the image. check_shape() then refuses another number than
  // the input's.
  const ImageShape shape{options_.shape.height, options_.shape.width, image.shape.channels};
  memory.resized.resize(static_cast<size_t>(shape.elements()));
  resize_image(image, box, shape.height, shape.width, memory.rows, memory.resized.data());
  return {shape, memory.resized.data()};
}

void ImageTransform::check_shape(const ImageView& image) const {
  const auto& [height, width, channels] = image.shape;
  const ImageShape& expected = options_.shape;
  TESSERA_CHECK(image.shape == expected, "images: an image of {} x {} x {}, expected {} x {} x {}",
                height, width, channels, expected.height, expected.width, expected.channels);
}

void ImageTransform::place(const ImageView& image, const Augmentation& at, void* out) const {
  check_shape(image);
  if (narrow_.empty()) {
    place_as(wide_, image, at, static_cast<float*>(out));
  } else {
    place_as(narrow_, image, at, static_cast<uint16_t*>(out));
  }
}

template <class T>
void ImageTransform::place_as(const std::vector<T>& table, const ImageView& image,
                              const Augmentation& at, T* out) const {
  const auto [height, width, channels] = image.shape;
  // Columns [begin, end) of the result come from the image, in order or mirrored. All other columns
  // are 0. If at.left shifts the whole image out of the result, begin == end.
  const int64_t begin = std::clamp<int64_t>(at.mirrored ? at.left : -at.left, 0, width);
  const int64_t end =
      std::max(begin, width - std::max<int64_t>(0, at.mirrored ? -at.left : at.left));
  const int64_t first = at.mirrored ? width - 1 + at.left - begin : begin + at.left;
  const int64_t step = at.mirrored ? -channels : channels;
  for (int64_t y = 0; y < height; ++y, out += width * channels) {
    const int64_t from = y + at.top;
    if (from < 0 || from >= height) {
      std::fill_n(out, width * channels, T{0});
      continue;
    }
    std::fill_n(out, begin * channels, T{0});
    std::fill(out + end * channels, out + width * channels, T{0});
    if (begin == end) continue;
    const uint8_t* pixel = image.pixels + (from * width + first) * channels;
    for (int64_t x = begin; x < end; ++x, pixel += step) {
      for (int64_t c = 0; c < channels; ++c) {
        out[x * channels + c] = table[static_cast<size_t>(c * 256 + pixel[c])];
      }
    }
  }
}

}  // namespace tessera::data
