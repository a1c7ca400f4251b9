// Bilinear resizing with antialiasing: if an image becomes smaller, each pixel is a mean over all
// pixels that it covers, weighted by a triangle (Pillow's and torchvision's default).
#pragma once

#include <cstdint>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// A part of an image, in pixels and fractions of pixels.
struct ImageBox {
  double top = 0;
  double left = 0;
  double height = 0;
  double width = 0;
};

/// Resizes the box of `image` to (height, width, C) in `out`; `rows` is scratch. At the box's edges
/// pixels outside of the box count too, as if the whole image were resized and then cut. Sums are
/// integers; they are rounded to the nearest value once after the pass along the rows, and once
/// after the pass along the columns. Throws unless C is 1 or 3.
void resize_image(const ImageView& image, const ImageBox& box, int64_t height, int64_t width,
                  std::vector<uint8_t>& rows, uint8_t* out);

}  // namespace tessera::data
