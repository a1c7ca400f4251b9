// CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images",
// 2009) in their binary version. A record has one label byte (CIFAR-100: two, a coarse and a fine
// label), and 32 x 32 pixels in planes of red, green and blue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

struct CifarFormat {
  int64_t label_bytes = 1;  // the last of these bytes is the label
  int64_t classes = 10;
};
inline constexpr CifarFormat cifar10{.label_bytes = 1, .classes = 10};
inline constexpr CifarFormat cifar100{.label_bytes = 2, .classes = 100};

/// Reads all records of the files, in order, into memory as (H, W, C). Throws InputError for a file
/// that is empty, has more than 4 GiB or ends within a record, and for a label that is not below
/// `classes`. Otherwise throws as InputFile does (core/text/input_file.h).
std::shared_ptr<const ImageSet> open_cifar(const std::vector<std::string>& paths,
                                           const CifarFormat& format);

/// Reads class names, one from each line of a file. Empty lines are skipped. If the file does not
/// exist, the names are "0", "1", ... Throws InputError if the number of names is not `classes`.
std::vector<std::string> read_class_names(const std::string& path, int64_t classes);

}  // namespace tessera::data
