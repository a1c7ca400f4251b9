// Computes a digest of images, to check that all ranks have the same images.
#pragma once

#include <cstdint>

#include "data/images/image_data.h"

namespace tessera::data {

/// Digests (core/digest.h) the class names and, for training and validation, all labels and 64
/// images at fixed places, evenly spread, or all images if `whole`. Images in files count as the
/// pixels that this machine decodes. Throws InputError for an image that cannot be read.
uint64_t digest_of_images(const ImageData& data, bool whole = false);

}  // namespace tessera::data
