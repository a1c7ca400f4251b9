#include "data/images/formats/image_file.h"

#include <algorithm>

#include "core/error.h"
#include "core/text/input_file.h"
#include "data/images/formats/jpeg_file.h"
#include "data/images/formats/png_file.h"

namespace tessera::data {
namespace {

bool begins_with(std::span<const uint8_t> file, std::initializer_list<uint8_t> magic) {
  return file.size() >= magic.size() && std::equal(magic.begin(), magic.end(), file.begin());
}

}  // namespace

void read_file(const std::string& path, int64_t limit_bytes, std::vector<uint8_t>& bytes) {
  const InputFile file(path);
  if (file.size() == 0) fail_input("{}: is empty", path);
  if (file.size() > limit_bytes) {
    fail_input("{}: has {} bytes, expected at most {}", path, file.size(), limit_bytes);
  }
  bytes.resize(static_cast<size_t>(file.size()));
  file.read_at(0, bytes.data(), bytes.size());
}

void check_image_size(const std::string& name, int64_t width, int64_t height) {
  if (width > 0 && height > 0 && width <= image_pixel_limit / height) return;
  fail_input("{}: says that it has {} x {} pixels, expected 1 to {} in all", name, width, height,
             image_pixel_limit);
}

ImageView decode_image(const std::string& name, std::span<const uint8_t> file,
                       std::vector<uint8_t>& pixels) {
  if (begins_with(file, {0xFF, 0xD8, 0xFF})) return decode_jpeg(name, file, pixels);
  if (begins_with(file, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'})) {
    return decode_png(name, file, pixels);
  }
  fail_input("{}: is neither JPEG nor PNG: it begins with the bytes {:02x}", name,
             fmt::join(file.first(std::min<size_t>(file.size(), 8)), " "));
}

ImageView read_image_file(const std::string& path, ImageMemory& memory) {
  read_file(path, image_file_limit_bytes, memory.file);
  return decode_image(path, memory.file, memory.pixels);
}

}  // namespace tessera::data
