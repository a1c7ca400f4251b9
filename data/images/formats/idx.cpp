#include "data/images/formats/idx.h"

#include <array>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/files/gzip_file.h"

namespace tessera::data {
namespace {

// A header is a magic number and the extent of each dimension. Images are u8 values in three
// dimensions, labels are u8 values in one dimension.
constexpr uint32_t images_magic = 0x00000803;
constexpr uint32_t labels_magic = 0x00000801;
constexpr int64_t most_extent = 65535;  // largest height or width of an image

uint32_t read_word(GzipFile& file) {
  std::array<uint8_t, 4> bytes{};
  if (file.read(bytes) != bytes.size()) fail_input("{}: ends in its header", file.path());
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void check_magic(GzipFile& file, uint32_t expected) {
  const uint32_t magic = read_word(file);
  if (magic == expected) return;
  fail_input("{}: begins with {:08x}, expected {:08x}, the magic number of IDX {}", file.path(),
             magic, expected, expected == images_magic ? "images" : "labels");
}

// Reads the `bytes` values after the header. Refuses a file with fewer or more values.
std::vector<uint8_t> read_values(GzipFile& file, int64_t bytes) {
  if (bytes == 0) fail_input("{}: its header says 0 bytes, expected at least 1", file.path());
  if (bytes > file.most_bytes()) {
    fail_input("{}: its header says {} bytes, more than a file of this size can hold (at most {})",
               file.path(), bytes, file.most_bytes());
  }
  std::vector<uint8_t> values(static_cast<size_t>(bytes));
  const size_t got = file.read(values);
  if (got != values.size()) {
    fail_input("{}: ends after {} bytes, but its header says {}", file.path(), got, bytes);
  }
  std::array<uint8_t, 1> beyond{};
  if (file.read(beyond) != 0) {
    fail_input("{}: has more than the {} bytes that its header says", file.path(), bytes);
  }
  return values;
}

}  // namespace

IdxImages open_idx(const std::string& images_path, const std::string& labels_path) {
  GzipFile images(images_path);
  check_magic(images, images_magic);
  const int64_t count = read_word(images);
  const int64_t height = read_word(images);
  const int64_t width = read_word(images);
  const ImageShape shape{height, width, 1};
  if (height < 1 || height > most_extent || width < 1 || width > most_extent) {
    fail_input("{}: its header says images of {} x {}, expected 1 to {}", images_path, height,
               width, most_extent);
  }
  GzipFile labels(labels_path);
  check_magic(labels, labels_magic);
  const int64_t label_count = read_word(labels);
  if (label_count != count) {
    fail_input("{}: has {} labels for the {} images of {}", labels_path, label_count, count,
               images_path);
  }
  // count has 32 bits, height and width have 16 each, so the product fits in uint64_t. If the
  // product is 2^63 or more, the conversion to int64_t makes it negative.
  const int64_t bytes = static_cast<int64_t>(static_cast<uint64_t>(count) *
                                             static_cast<uint64_t>(shape.elements()));
  if (bytes < 0) fail_input("{}: its header says 2^63 bytes or more", images_path);
  const std::vector<uint8_t> label_bytes = read_values(labels, count);
  for (int64_t i = 0; i < count; ++i) {
    if (label_bytes[static_cast<size_t>(i)] < idx_classes) continue;
    fail_input("{}: label {} is {}, expected one below {}", labels_path, i,
               label_bytes[static_cast<size_t>(i)], idx_classes);
  }
  auto name_of = [file = std::filesystem::path(images_path).filename().string()](int64_t index) {
    return fmt::format("{}, image {}", file, index);
  };
  return {std::make_shared<StoredImages>(
              shape, read_values(images, bytes),
              std::vector<int32_t>(label_bytes.begin(), label_bytes.end()), std::move(name_of)),
          shape};
}

}  // namespace tessera::data
