// IDX, the format of MNIST (LeCun et al., "Gradient-based learning applied to document
// recognition", 1998) and Fashion-MNIST: a file of images and a file of labels, compressed by gzip
// or not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/images/image_set.h"

namespace tessera::data {

inline constexpr int64_t idx_classes = 10;

struct IdxImages {
  std::shared_ptr<const ImageSet> set;
  ImageShape shape;  // one channel
};

/// Reads images and their labels. Throws as GzipFile does, and throws InputError
///  - if a file is not IDX or does not match its header,
///  - if an image's height or width is 0 or above 65535,
///  - if the two files have different numbers of entries, or no entries,
///  - if a label is not below idx_classes.
IdxImages open_idx(const std::string& images_path, const std::string& labels_path);

}  // namespace tessera::data
