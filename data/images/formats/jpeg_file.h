// Decodes JPEG by libjpeg. Errors of libjpeg jump (longjmp) over stack frames, so jpeg_file.cpp
// keeps these frames free of objects with destructors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// Decodes a grey, YCbCr, RGB, CMYK or YCCK image to u8 (H, W, 3) in `pixels`. Throws InputError if
/// libjpeg cannot read the file, if data is damaged or missing, or if the image has too many
/// pixels or scans. The message begins with `name`.
ImageView decode_jpeg(const std::string& name, std::span<const uint8_t> file,
                      std::vector<uint8_t>& pixels);

}  // namespace tessera::data
