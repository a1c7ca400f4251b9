// File names by which the readers of images and ratings recognize data in a folder. The functions
// are inline. So a program can check its output paths for such names without linking the readers.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

inline bool names_cifar10_batch(std::string_view name) {
  return name.starts_with("data_batch_") && name.ends_with(".bin");
}

/// Returns the names that a file of MNIST (in the format IDX) may have, such as
/// "train-images-idx3-ubyte.gz". `part` is "train" or "t10k"; `content` is "images-idx3" or
/// "labels-idx1".
inline std::vector<std::string> idx_names(const std::string& part, const std::string& content) {
  std::string dotted = content;
  dotted[content.rfind('-')] = '.';
  std::vector<std::string> names;
  for (const std::string& name : {content, dotted}) {
    for (const char* suffix : {"-ubyte", "-ubyte.gz"}) names.push_back(part + "-" + name + suffix);
  }
  return names;
}

/// True if open_image_data looks for a file of this name directly in the folder that it opens. The
/// files of CIFAR and MNIST have such names.
inline bool names_image_data(const std::string& name) {
  constexpr std::array<std::string_view, 5> others = {
      "test_batch.bin", "batches.meta.txt", "train.bin", "test.bin", "fine_label_names.txt"};
  if (names_cifar10_batch(name) || std::ranges::find(others, name) != others.end()) return true;
  for (const char* part : {"train", "t10k"}) {
    for (const char* content : {"images-idx3", "labels-idx1"}) {
      const std::vector<std::string> names = idx_names(part, content);
      if (std::ranges::find(names, name) != names.end()) return true;
    }
  }
  return false;
}

/// True if a file of this name in a folder is taken for the folder's ratings.
inline bool names_rating_file(std::string_view name) {
  if (name.ends_with(".gz")) name.remove_suffix(3);
  return name == "u.data" || name == "ratings.dat" || name == "ratings.csv" ||
         name.ends_with(".inter");
}

}  // namespace tessera::data
