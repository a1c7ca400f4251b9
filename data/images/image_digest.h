// Whether two ranks have the same images.
#pragma once

#include <cstdint>

#include "data/images/image_data.h"

namespace tessera::data {

/// A digest (core/digest.h) of the names of the classes and, for training and validation, of all
/// labels and of 64 images at fixed places, evenly spread; `whole`: of all images. Of images in
/// files it is their pixels that count, as this machine decodes them. Throws InputError for one
/// that cannot be read.
uint64_t digest_of_images(const ImageData& data, bool whole = false);

}  // namespace tessera::data
