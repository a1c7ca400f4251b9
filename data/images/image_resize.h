// Bilinear resizing with antialiasing, as Pillow's filter BILINEAR and, by default, torchvision do.
// If an image becomes smaller, each new pixel is a weighted mean of old pixels. The weights form a
// triangle that is two new pixels wide.
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

/// Resizes the box of `image` to (height, width, C) in `out`; `rows` is scratch. Pixels outside of
/// the box contribute near its edges, as if the whole image were resized and then cropped. Pixels
/// are summed in integers. Sums are rounded to 8 bits after each of the two passes: along the rows,
/// then along the columns. Throws unless C is 1 or 3.
void resize_image(const ImageView& image, const ImageBox& box, int64_t height, int64_t width,
                  std::vector<uint8_t>& rows, uint8_t* out);

}  // namespace tessera::data
