#include "data/images/image_set.h"

#include <cmath>
#include <utility>

#include "core/error.h"

namespace tessera::data {

StoredImages::StoredImages(const ImageShape& shape, std::vector<uint8_t> pixels,
                           std::vector<int32_t> labels, NameOf name_of)
    : shape_(shape),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      name_of_(std::move(name_of)) {
  TESSERA_CHECK(std::ssize(pixels_) == std::ssize(labels_) * shape.elements(),
                "images: {} bytes for {} images of {} bytes each", pixels_.size(), labels_.size(),
                shape.elements());
}

ImageView StoredImages::read(int64_t index, ImageMemory&) const {
  TESSERA_CHECK(index >= 0 && index < size(), "images: there is no image {} of {}", index, size());
  return {shape_, pixels_.data() + index * shape_.elements()};
}

ImageRange::ImageRange(std::shared_ptr<const ImageSet> set, int64_t begin, int64_t end)
    : set_(std::move(set)), begin_(begin), end_(end) {
  TESSERA_CHECK(begin >= 0 && begin <= end && end <= set_->size(),
                "images: [{}, {}) is not a range of {} images", begin, end, set_->size());
}

ChannelStatistics measure_channels(const ImageSet& set, int64_t channels) {
  // Counts how often each value occurs in each channel. Sums over these counts are exact, because
  // they are sums of integers.
  std::vector<uint64_t> counts(static_cast<size_t>(channels) * 256);
  ImageMemory memory;
  for (int64_t i = 0; i < set.size(); ++i) {
    const ImageView image = set.read(i, memory);
    for (int64_t j = 0; j < image.shape.elements(); ++j) {
      ++counts[static_cast<size_t>(j % channels * 256 + image.pixels[j])];
    }
  }
  ChannelStatistics result;
  for (int64_t c = 0; c < channels; ++c) {
    uint64_t count = 0, sum = 0, squares = 0;
    int different = 0;
    for (uint64_t value = 0; value < 256; ++value) {
      const uint64_t times = counts[static_cast<size_t>(c) * 256 + value];
      different += times > 0;
      count += times;
      sum += times * value;
      squares += times * value * value;
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(count);
    const double variance = static_cast<double>(squares) / static_cast<double>(count) - mean * mean;
    if (different < 2) {
      fail_input("{} and all others of the {} images: channel {} is {} everywhere, expected images "
                 "that differ", set.name(0), set.size(), c, mean);
    }
    result.mean.push_back(static_cast<float>(mean / 255));
    result.std.push_back(static_cast<float>(std::sqrt(variance) / 255));
  }
  return result;
}

}  // namespace tessera::data
