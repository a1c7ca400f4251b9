#include "data/images/image_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/image_side.h"
#include "core/text/input_file.h"
#include "core/text/lower_case.h"
#include "core/text/number_text.h"
#include "data/file_names.h"
#include "data/images/drawn_images.h"
#include "data/images/formats/cifar.h"
#include "data/images/formats/folder_images.h"
#include "data/images/formats/idx.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

// Statistics of ImageNet's training images, as torchvision's models expect them.
const ChannelStatistics imagenet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

struct Folder {
  std::string path;
  std::vector<std::string> files;    // sorted
  std::vector<std::string> folders;  // sorted

  std::string in(const std::string& name) const { return fs::path(path) / name; }
  bool has_file(const std::string& name) const {
    return std::binary_search(files.begin(), files.end(), name);
  }
};

Folder look_into(const std::string& path) {
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (error) fail_with_reason(error.value(), path);  // such as a parent without permission
  if (!exists) fail_input("{}: no such folder", path);
  if (!fs::is_directory(path, error)) {
    fail_input("{}: is a file, expected the folder that has the images' files", path);
  }
  Folder result{.path = path, .files = {}, .folders = folders_in(path)};
  for (const fs::directory_entry& entry : entries_in(path)) {
    if (!entry.is_directory(error)) result.files.push_back(entry.path().filename());
  }
  std::sort(result.files.begin(), result.files.end());
  return result;
}

// Each find_ function below looks for the files of one format. The function returns nullopt if the
// folder has no such files, and throws if the files are incomplete or malformed.
using Found = std::optional<ImageData>;

ImageData in_memory(std::string format, std::shared_ptr<const ImageSet> train,
                    std::shared_ptr<const ImageSet> validation,
                    std::vector<std::string> class_names, const ImageShape& shape) {
  ImageData data{.format = std::move(format),
                 .train = std::move(train),
                 .validation = std::move(validation),
                 .class_names = std::move(class_names),
                 .transform = {.shape = shape}};
  data.transform.norm = measure_channels(*data.train, shape.channels);
  return data;
}

constexpr ImageShape cifar_shape{32, 32, 3};

Found find_cifar10(const Folder& folder) {
  std::vector<std::string> paths;
  for (const std::string& file : folder.files) {
    if (names_cifar10_batch(file)) paths.push_back(folder.in(file));
  }
  const bool tests = folder.has_file("test_batch.bin");
  if (paths.empty() && !tests) return {};
  if (paths.empty() || !tests) {
    fail_input("{}: has {}, expected both data_batch_*.bin and test_batch.bin, which CIFAR-10 has",
               folder.path, tests ? "test_batch.bin alone" : "no test_batch.bin");
  }
  // Shorter names come first, so that batch 2 is before batch 10.
  std::stable_sort(paths.begin(), paths.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  auto train = open_cifar(paths, cifar10);
  auto test = open_cifar({folder.in("test_batch.bin")}, cifar10);
  return in_memory("cifar10", std::move(train), std::move(test),
                   read_class_names(folder.in("batches.meta.txt"), cifar10.classes), cifar_shape);
}

Found find_cifar100(const Folder& folder) {
  const bool trains = folder.has_file("train.bin");
  if (trains != folder.has_file("test.bin")) {
    fail_input("{}: has {} alone, expected both train.bin and test.bin, which CIFAR-100 has",
               folder.path, trains ? "train.bin" : "test.bin");
  }
  if (!trains) return {};
  auto train = open_cifar({folder.in("train.bin")}, cifar100);
  auto test = open_cifar({folder.in("test.bin")}, cifar100);
  return in_memory("cifar100", std::move(train), std::move(test),
                   read_class_names(folder.in("fine_label_names.txt"), cifar100.classes),
                   cifar_shape);
}

// Returns the path of a file in `folder` with a name in idx_names(part, content), or an empty path
// if there is no such file.
std::string idx_file(const Folder& folder, const std::string& part, const std::string& content) {
  for (const std::string& file : idx_names(part, content)) {
    if (folder.has_file(file)) return folder.in(file);
  }
  return {};
}

std::optional<IdxImages> find_idx_pair(const Folder& folder, const std::string& part) {
  const std::string images = idx_file(folder, part, "images-idx3");
  const std::string labels = idx_file(folder, part, "labels-idx1");
  if (images.empty() && labels.empty()) return {};
  if (images.empty() || labels.empty()) {
    fail_input("{}: has {} alone, expected {}-images-idx3-ubyte and {}-labels-idx1-ubyte, .gz or "
               "not", folder.path, fs::path(images.empty() ? labels : images).filename().string(),
               part, part);
  }
  return open_idx(images, labels);
}

Found find_idx(const Folder& folder) {
  auto train = find_idx_pair(folder, "train");
  auto test = find_idx_pair(folder, "t10k");
  if (!train && !test) return {};
  const ImageShape shape = (train ? train : test)->shape;
  if (train && test && train->shape != test->shape) {
    fail_input("{}: the images of train are {} x {}, those of t10k {} x {}, expected equal sizes",
               folder.path, shape.height, shape.width, test->shape.height, test->shape.width);
  }
  if (!train || !test) {
    const auto set = (train ? train : test)->set;
    const int64_t middle = set->size() * 9 / 10;
    if (middle < 1) {
      fail_input("{}: has {} image, expected at least two: the last tenth is held out",
                 folder.path, set->size());
    }
    test = IdxImages{std::make_shared<ImageRange>(set, middle, set->size()), shape};
    train = IdxImages{std::make_shared<ImageRange>(set, 0, middle), shape};
  }
  ImageData data =
      in_memory("idx", train->set, test->set, read_class_names("", idx_classes), shape);
  data.transform.flips = false;  // a mirrored digit is wrong, or another digit
  return data;
}

constexpr int64_t folder_image_size = 224;  // height and width of images of a folder by default
constexpr std::array<std::string_view, 2> training_names = {"train", "training"};
constexpr std::array<std::string_view, 3> validation_names = {"val", "valid", "validation"};
constexpr std::array<std::string_view, 2> test_names = {"test", "testing"};

// Returns the names of the subfolders of `folder` that are in `names`. The subfolders' names may
// have capital letters; `names` must be in lower case.
std::vector<std::string> folders_called(const Folder& folder,
                                        std::span<const std::string_view> names) {
  std::vector<std::string> found;
  for (const std::string& name : folder.folders) {
    if (std::ranges::find(names, lower_case(name)) != names.end()) found.push_back(name);
  }
  return found;
}

// `names` are subfolders of `folder`. Returns the path of the only one, or an empty path if `names`
// is empty. Throws if there are several, because they may hold different images. Several links to
// the same folder count as one.
std::string only_one(const Folder& folder, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const std::string path = folder.in(names.back());
  const bool is_one = std::ranges::all_of(names, [&](const std::string& name) {
    std::error_code error;
    return name == names.back() || fs::equivalent(folder.in(name), path, error);
  });
  if (!is_one) {
    fail_input("{}: has the folders {}, expected only one of them", folder.path,
               fmt::join(names, " and "));
  }
  return path;
}

// Returns the path of the folder "train" or "training", or an empty path if there is none. The
// folder counts only if it has at least `least` class folders. With fewer folders, it is itself
// taken for a class with this name.
std::string training_folder(const Folder& folder, size_t least) {
  std::vector<std::string> found = folders_called(folder, training_names);
  std::erase_if(found,
                [&](const auto& name) { return folders_in(folder.in(name)).size() < least; });
  return only_one(folder, found);
}

std::string validation_folder(const Folder& folder) {
  const auto found = folders_called(folder, validation_names);
  return only_one(folder, found.empty() ? folders_called(folder, test_names) : found);
}

// Returns all paths at which a training or validation folder is looked for, whether it exists or
// not. Names with capital letters are returned only if the folder exists.
std::vector<std::string> part_paths(const Folder& folder) {
  std::vector<std::string> paths;
  const auto add = [&](std::span<const std::string_view> names) {
    for (const std::string& name : folders_called(folder, names)) paths.push_back(folder.in(name));
    for (const std::string_view name : names) paths.push_back(folder.in(std::string(name)));
  };
  add(training_names);
  add(validation_names);
  if (folders_called(folder, validation_names).empty()) add(test_names);
  return paths;
}

bool has_files(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : entries_in(path)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && !entry.is_directory(error)) return true;
  }
  return false;
}

// Throws if two subfolders of `folder` look like parts of a data set, such as training and
// validation, and not like classes. They look like parts if neither has files of its own, and two
// or more names of folders occur in both. One common name is not enough, because some data sets
// have a folder "images" in every class.
void refuse_parts(const Folder& folder) {
  std::vector<std::pair<std::string, std::vector<std::string>>> seen;  // path, names of folders
  for (const std::string& name : folder.folders) {
    const std::string path = folder.in(name);
    if (has_files(path)) continue;
    const std::vector<std::string> inner = folders_in(path);
    for (const auto& [other_path, other] : seen) {
      std::vector<std::string> common;
      std::ranges::set_intersection(other, inner, std::back_inserter(common));
      if (common.size() < 2) continue;
      fail_input(
          "{} and {} have no images, but the same folders {}; expected a folder of images for each "
          "class, or such folders in train/, and in val/ if there are any",
          other_path, path, fmt::join(common, ", "));
    }
    seen.emplace_back(path, inner);
  }
}

Found find_folders(const Folder& folder) {
  ImageData data{.format = "folder"};
  data.transform.shape.channels = 3;
  data.transform.norm = imagenet;
  data.transform.resizes = true;
  std::string validation = validation_folder(folder);
  std::string training = training_folder(folder, validation.empty() ? 2 : 1);
  if (training.empty() || validation.empty()) refuse_parts(folder);
  if (training.empty()) {
    training = folder.path;
    validation.clear();  // a folder such as "val" or "test" is then one of the classes
    data.class_parents = {training};
  } else {
    data.class_parents = part_paths(folder);
  }
  data.class_names = folders_in(training);
  if (data.classes() < 2) return {};
  const auto all = std::make_shared<FolderImages>(training, data.class_names);
  if (validation.empty()) {
    auto [train, held_out] = all->hold_out();
    data.train = std::move(train);
    data.validation = std::move(held_out);
    return data;
  }
  const std::vector<std::string> names = folders_in(validation);
  if (names != data.class_names) {
    fail_input("{}: has {}, expected those of {}: {}", validation,
               names.empty() ? "no class folders"
                             : fmt::format("the class folders {}", fmt::join(names, ", ")),
               training, fmt::join(data.class_names, ", "));
  }
  data.train = all;
  data.validation = std::make_shared<FolderImages>(validation, data.class_names);
  return data;
}

ImageData find(const std::string& path) {
  const Folder folder = look_into(path);
  for (const auto& format : {find_cifar10, find_cifar100, find_idx, find_folders}) {
    if (Found found = format(folder)) return *std::move(found);
  }
  fail_input(
      "{}: has no images in a known format. Looked for: data_batch_*.bin and test_batch.bin "
      "(CIFAR-10); train.bin and test.bin (CIFAR-100); {{train,t10k}}-images-idx3-ubyte and "
      "-labels-idx1-ubyte, .gz or not (MNIST, Fashion-MNIST); two or more folders of JPEG or "
      "PNG files, one per class, or such folders in train/ and val/",
      path);
}

ImageData draw(const ImageDataOptions& options) {
  return in_memory("drawn", draw_images("train", options.drawn_training),
                   draw_images("validation", options.drawn_validation),
                   {drawn_classes.begin(), drawn_classes.end()}, drawn_shape);
}

void set_size(ImageData& data, const ImageDataOptions& options) {
  ImageShape& shape = data.transform.shape;
  const bool is_default = options.image_size == 0 && data.transform.resizes;
  const int64_t size = is_default ? folder_image_size : options.image_size;
  if (size < 0 || size > most_image_side) {
    fail_input("image size is {}, expected 0 to {}", size, most_image_side);
  }
  if (size == 0 || (size == shape.height && size == shape.width)) return;
  if (!data.transform.resizes) {
    fail_input(
        "an image size of {} is asked for, but the images of {} are {} x {} and are not "
        "resized; only those of a folder of JPEG or PNG files are",
        size, options.path.empty() ? "the drawn set" : options.path, shape.height, shape.width);
  }
  shape.height = shape.width = size;
}

}  // namespace

std::string ImageData::description() const {
  const auto& [height, width, channels] = transform.shape;
  return fmt::format("{} of {} x {} x {} in {} to train on, {} to validate",
                     counted(train->size(), "image"), height, width, channels,
                     counted(classes(), "class", "classes"), grouped(validation->size()));
}

ImageData open_image_data(const ImageDataOptions& options) {
  ImageData data = options.path.empty() ? draw(options) : find(options.path);
  set_size(data, options);
  return data;
}

}  // namespace tessera::data
