// PNG by libpng. Its errors jump (setjmp) over the frames between: png_file.cpp keeps these free of
// objects with destructors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// u8 (H, W, 3) in `pixels`. All kinds of PNG. Throws InputError, beginning with `name`, for
/// damaged or missing data and for too many pixels.
ImageView decode_png(const std::string& name, std::span<const uint8_t> file,
                     std::vector<uint8_t>& pixels);

}  // namespace tessera::data
