// JPEG by libjpeg. Its errors jump (setjmp) over the frames between: jpeg_file.cpp keeps these free
// of objects with destructors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// u8 (H, W, 3) in `pixels`. Grey, YCbCr, RGB, CMYK and YCCK. Throws InputError, beginning with
/// `name`, for what libjpeg cannot read, for damaged or missing data and for too many pixels.
ImageView decode_jpeg(const std::string& name, std::span<const uint8_t> file,
                      std::vector<uint8_t>& pixels);

}  // namespace tessera::data
