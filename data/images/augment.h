// Turns images into a model's input: cuts them to size, shifts and mirrors them at random in
// training, and normalises them. The random choices for an image depend only on (seed, epoch,
// sample) and on the image's size.
//
//   images of one size
//     training     a random crop of the image, after 4 pixels with the mean value are added on each
//                  side (He et al., arXiv:1512.03385, 4.2)
//     evaluation   the image as it is
//   images of any size
//     training     a random part with 8 to 100 % of the area and an aspect ratio of 3:4 to 4:3,
//                  resized (Szegedy et al., arXiv:1409.4842); if ten random parts do not fit into
//                  the image, a part in its middle
//     evaluation   a box in the middle of the image, resized; the box is 224 / 256 as high and
//                  wide as the largest box with the input's aspect ratio (see evaluated_share)
//   If `flips` is set, training also mirrors images of both kinds at random.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "data/images/image_resize.h"
#include "data/images/image_set.h"

namespace tessera::data {

struct ImageTransformOptions {
  ImageShape shape = {};        // shape of the input
  ChannelStatistics norm = {};  // the input is (value / 255 - mean) / std
  bool resizes = false;         // true: images of any size; false: all have the input's size
  bool flips = true;            // mirror in training; set false if mirroring can change a class
  bool augments = true;         // false: training prepares images as evaluation does
  uint64_t seed = 0;
  DType dtype = DType::f32;
  /// If images are resized, evaluation cuts a box with the input's aspect ratio from the middle of
  /// the image. evaluated_share is the height of this box, divided by the height of the largest box
  /// with this aspect ratio in the image.
  double evaluated_share = 224.0 / 256;
};

/// The random choices for one training image: where to cut, and whether to mirror.
struct Augmentation {
  int64_t top = 0;   // first row of the crop in the image; negative in the padding
  int64_t left = 0;
  ImageBox box;      // replaces top and left if images are resized
  bool mirrored = false;
};

/// Turns images into a model's input. Its functions may be called from any thread.
class ImageTransform {
 public:
  explicit ImageTransform(const ImageTransformOptions& options);

  const ImageTransformOptions& options() const { return options_; }
  /// Draws the augmentation of sample `sample` of the training set in an epoch. `image_shape` is
  /// the shape before any resize.
  Augmentation draw(const ImageShape& image_shape, int64_t epoch, int64_t sample) const;

  /// train and evaluate write the input, (H, W, C) of the options' dtype, to `out` on the host.
  /// Both throw if the image, after any resize, does not have the input's shape.
  void train(const ImageView& image, int64_t epoch, int64_t sample, ImageMemory& memory,
             void* out) const;
  void evaluate(const ImageView& image, ImageMemory& memory, void* out) const;

 private:
  /// Writes the pixels from (at.top, at.left) on, normalised, and mirrored if at.mirrored. Padding
  /// becomes 0, which is the normalised mean.
  void place(const ImageView& image, const Augmentation& at, void* out) const;
  template <class T>
  void place_as(const std::vector<T>& table, const ImageView& image, const Augmentation& at,
                T* out) const;
  ImageView resize(const ImageView& image, const ImageBox& box, ImageMemory& memory) const;
  void check_shape(const ImageView& image) const;

  ImageTransformOptions options_;
  // Tables of the 256 normalised values of each channel: as floats, and for 16-bit types as bits.
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
};

}  // namespace tessera::data
