// Reads JPEG and PNG files as RGB. The format is recognized by a file's contents, not by its name.
// As in torchvision's loader, grey becomes three equal channels, transparency is dropped without
// changing the colours, and the camera's orientation (EXIF) is ignored. Values of 16 bits are
// scaled to 8 bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// Limit on the pixels of a decoded image. Larger images are refused before memory is allocated.
inline constexpr int64_t image_pixel_limit = int64_t{64} << 20;
inline constexpr int64_t image_file_limit_bytes = int64_t{256} << 20;

/// Reads the whole file into `bytes`. Throws InputError if the file is empty or has more than
/// `limit_bytes`. Otherwise throws as InputFile does (core/text/input_file.h).
void read_file(const std::string& path, int64_t limit_bytes, std::vector<uint8_t>& bytes);

/// Decodes an image to u8 (H, W, 3) in `pixels`. Throws InputError if `file` is neither JPEG nor
/// PNG, is damaged or cut short, or has too many pixels. The message begins with `name`.
ImageView decode_image(const std::string& name, std::span<const uint8_t> file,
                       std::vector<uint8_t>& pixels);
/// Reads a file of at most image_file_limit_bytes and decodes it. The pixels are in `memory`.
ImageView read_image_file(const std::string& path, ImageMemory& memory);

/// Throws InputError if the width or the height is below 1, or if their product exceeds
/// image_pixel_limit. The message begins with `name`.
void check_image_size(const std::string& name, int64_t width, int64_t height);

}  // namespace tessera::data
