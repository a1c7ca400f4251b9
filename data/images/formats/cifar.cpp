#include "data/images/formats/cifar.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/text/input_file.h"
#include "data/images/formats/image_file.h"

namespace tessera::data {
namespace {

constexpr ImageShape shape{32, 32, 3};
constexpr int64_t plane = 32 * 32;
constexpr int64_t file_limit_bytes = int64_t{4} << 30;
constexpr int64_t names_limit_bytes = int64_t{1} << 20;

struct Part {
  std::string file;   // name without the folder
  int64_t first = 0;  // the first record of the file has this index in the set
};

void append(const std::string& path, const CifarFormat& format, std::vector<uint8_t>& pixels,
            std::vector<int32_t>& labels) {
  std::vector<uint8_t> file;
  read_file(path, file_limit_bytes, file);
  const int64_t record_bytes = format.label_bytes + shape.elements();
  if (std::ssize(file) % record_bytes != 0) {
    fail_input("{}: has {} bytes, expected whole records of {}: {} of labels and 32 x 32 x 3 of "
               "pixels", path, file.size(), record_bytes, format.label_bytes);
  }
  const int64_t records = std::ssize(file) / record_bytes;
  auto out = static_cast<int64_t>(pixels.size());
  pixels.resize(pixels.size() + static_cast<size_t>(records * shape.elements()));
  for (int64_t i = 0; i < records; ++i) {
    const uint8_t* record = file.data() + i * record_bytes;
    const uint8_t label = record[format.label_bytes - 1];
    if (label >= format.classes) {
      fail_input("{}: record {} has the label {}, expected one below {}", path, i, label,
                 format.classes);
    }
    labels.push_back(label);
    const uint8_t* planes = record + format.label_bytes;
    for (int64_t j = 0; j < plane; ++j) {
      for (int64_t c = 0; c < 3; ++c) {
        pixels[static_cast<size_t>(out++)] = planes[c * plane + j];
      }
    }
  }
}

}  // namespace

std::shared_ptr<const ImageSet> open_cifar(const std::vector<std::string>& paths,
                                           const CifarFormat& format) {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
  std::vector<Part> parts;
  for (const std::string& path : paths) {
    parts.push_back({std::filesystem::path(path).filename(), std::ssize(labels)});
    append(path, format, pixels, labels);
  }
  auto name_of = [parts](int64_t index) {
    const auto next = std::find_if(parts.begin(), parts.end(),
                                   [&](const Part& part) { return part.first > index; });
    const Part& part = *std::prev(next);
    return fmt::format("{}, record {}", part.file, index - part.first);
  };
  return std::make_shared<StoredImages>(shape, std::move(pixels), std::move(labels),
                                        std::move(name_of));
}

std::vector<std::string> read_class_names(const std::string& path, int64_t classes) {
  std::vector<std::string> names;
  if (!has_name(path)) {
    for (int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
    return names;
  }
  std::vector<uint8_t> bytes;
  read_file(path, names_limit_bytes, bytes);
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  for (std::string line; std::getline(text, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (std::ssize(names) != classes) {
    fail_input("{}: has {} names of classes, expected {}", path, names.size(), classes);
  }
  return names;
}

}  // namespace tessera::data
