// How an image becomes a model's input: cut to size, in training also moved and mirrored at random,
// and normalised. What is drawn for an image is a function of (seed, epoch, sample) alone.
//
//   images of one size    training: a crop of the image padded by 4 pixels, of the mean's value, on
//                         each side (He et al., arXiv:1512.03385, 4.2); evaluation: as it is
//   images of any size    training: a random part, 8 to 100 % of the area, 3:4 to 4:3, resized
//                         (Szegedy et al., arXiv:1409.4842); evaluation: the middle of the image
//                         whose shorter side was resized to 256 / 224 of the input's
//   both, in training     mirrored or not
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "data/images/image_resize.h"
#include "data/images/image_set.h"

namespace tessera::data {

struct ImageTransformOptions {
  ImageShape shape = {};        // of the input
  ChannelStatistics norm = {};  // the input is (value / 255 - mean) / std
  bool resizes = false;         // images of any size; else of the input's
  bool flips = true;            // an image and its mirror image are of one class
  bool augments = true;         // else training takes images as evaluation does
  uint64_t seed = 0;
  DType dtype = DType::f32;
};

/// Where a training image is cut and whether it is mirrored.
struct Augmentation {
  int64_t top = 0;   // of the crop, in pixels of the image; negative in the padding
  int64_t left = 0;
  ImageBox box;      // where images are resized, in place of top and left
  bool mirrored = false;
};

/// Safe to use from any thread.
class ImageTransform {
 public:
  explicit ImageTransform(const ImageTransformOptions& options);

  const ImageTransformOptions& options() const { return options_; }
  /// Of sample `sample` of the training set in an epoch; image_shape is the image's.
  Augmentation draw(const ImageShape& image_shape, int64_t epoch, int64_t sample) const;

  /// Write (H, W, C) of the dtype to `out`, on the host. Throw where an image that should have the
  /// input's shape has another.
  void train(const ImageView& image, int64_t epoch, int64_t sample, ImageMemory& memory,
             void* out) const;
  void evaluate(const ImageView& image, ImageMemory& memory, void* out) const;

 private:
  /// Writes the pixels from (top, left), normalised; zeros, the mean, where there are none.
  void place(const ImageView& image, const Augmentation& at, void* out) const;
  template <class T>
  void place_as(const std::vector<T>& table, const ImageView& image, const Augmentation& at,
                T* out) const;
  ImageView resize(const ImageView& image, const ImageBox& box, ImageMemory& memory) const;
  void check_shape(const ImageView& image) const;

  ImageTransformOptions options_;
  // The 256 normalised values of each channel; of 16-bit types their bits.
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
};

}  // namespace tessera::data
