// Images with labels. All kinds of image sets, in memory or in files, have the interface ImageSet.
//
//   ImageMemory memory;                                  // one per thread
//   const ImageView image = set.read(17, memory);        // u8 (H, W, C)
//   set.label(17);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

struct ImageShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;

  int64_t elements() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

/// An image, u8 (H, W, C), in memory that another object owns.
struct ImageView {
  ImageShape shape;
  const uint8_t* pixels = nullptr;
};

/// Buffers for reading images. Each reading thread has its own ImageMemory and reuses it.
struct ImageMemory {
  std::vector<uint8_t> file;
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> rows;     // scratch of resize_image (image_resize.h)
  std::vector<uint8_t> resized;
};

/// A set of images with labels. Its functions may be called from any thread.
class ImageSet {
 public:
  virtual ~ImageSet() = default;
  virtual int64_t size() const = 0;
  virtual int32_t label(int64_t index) const = 0;
  /// Returns where the image comes from: its file, its position in a file, or its index among drawn
  /// images (data/images/drawn_images.h).
  virtual std::string name(int64_t index) const = 0;
  /// Reads an image. The view is valid until `memory` is used again or the set is destroyed. Throws
  /// InputError, with name and index, for an image that is missing, malformed or may not be opened.
  /// Throws Error, with the name, if the cause is the machine (core/text/input_file.h).
  virtual ImageView read(int64_t index, ImageMemory& memory) const = 0;
};

/// Images of one shape, in memory.
class StoredImages : public ImageSet {
 public:
  using NameOf = std::function<std::string(int64_t)>;
  /// `pixels` are u8 (N, H, W, C) and have N labels; name_of(i) is the name of image i.
  StoredImages(const ImageShape& shape, std::vector<uint8_t> pixels, std::vector<int32_t> labels,
               NameOf name_of);

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  std::string name(int64_t index) const override { return name_of_(index); }
  ImageView read(int64_t index, ImageMemory&) const override;

 private:
  ImageShape shape_;
  std::vector<uint8_t> pixels_;
  std::vector<int32_t> labels_;
  NameOf name_of_;
};

/// Images [begin, end) of a set.
class ImageRange : public ImageSet {
 public:
  ImageRange(std::shared_ptr<const ImageSet> set, int64_t begin, int64_t end);

  int64_t size() const override { return end_ - begin_; }
  int32_t label(int64_t index) const override { return set_->label(begin_ + index); }
  std::string name(int64_t index) const override { return set_->name(begin_ + index); }
  ImageView read(int64_t index, ImageMemory& memory) const override {
    return set_->read(begin_ + index, memory);
  }

 private:
  std::shared_ptr<const ImageSet> set_;
  int64_t begin_;
  int64_t end_;
};

/// Mean and standard deviation of each channel, for values scaled to [0, 1].
struct ChannelStatistics {
  std::vector<float> mean;
  std::vector<float> std;
};
/// Computes the statistics of all pixels of all images, with exact sums. Throws InputError if a
/// channel has the same value everywhere: its standard deviation would be 0, and normalisation
/// divides by it.
ChannelStatistics measure_channels(const ImageSet& set, int64_t channels);

}  // namespace tessera::data
