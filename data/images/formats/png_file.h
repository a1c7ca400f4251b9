// Decodes PNG by libpng. Errors of libpng jump (longjmp) over stack frames, so png_file.cpp keeps
// these frames free of objects with destructors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// Decodes any kind of PNG to u8 (H, W, 3) in `pixels`. Throws InputError if the image has too many
/// pixels, or if libpng reports an error, such as damaged or missing data. Throws Error if libpng
/// fails without a text, for instance because it has no memory. The message begins with `name`.
/// Damage that only causes a warning of libpng is ignored.
ImageView decode_png(const std::string& name, std::span<const uint8_t> file,
                     std::vector<uint8_t>& pixels);

}  // namespace tessera::data
