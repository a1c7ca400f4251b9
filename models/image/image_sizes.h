// The sizes that an image classifier is built for.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/image_side.h"

namespace tessera::models {

struct ImageSizes {
  int64_t side = 32;  // side of a square image, in pixels
  int64_t channels = 3;
  int64_t classes = 10;

  /// Throws InputError if a size is out of range.
  void validate() const {
    if (side >= 1 && side <= most_image_side && channels >= 1 && channels <= 1024 && classes >= 1 &&
        classes <= 1 << 20) {
      return;
    }
    fail_input(
        "a model for images of {} x {} pixels, {} channels and {} classes: expected 1 to "
        "{} pixels, 1 to 1024 channels and 1 to 1048576 classes",
        side, side, channels, classes, most_image_side);
  }
};

}  // namespace tessera::models
