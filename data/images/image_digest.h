// Computes a digest of images, to check that all ranks have the same images.
#pragma once

#include <cstdint>

#include "data/images/image_data.h"

namespace tessera::data {

/// Returns a digest (core/digest.h) of the class names and of the two parts, training and
/// validation. All labels of a part are digested, but only 64 evenly spaced images. If the part has
/// fewer than 64 images, or if `whole` is true, all its images are digested. Images from files are
/// digested as decoded pixels. Throws as ImageSet::read does.
uint64_t digest_of_images(const ImageData& data, bool whole = false);

}  // namespace tessera::data
