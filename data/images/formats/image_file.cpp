#include "data/images/formats/image_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "data/images/formats/jpeg_file.h"
#include "data/images/formats/png_file.h"

namespace tessera::data {
namespace {

class Descriptor {
 public:
  // Without waiting: a pipe that nobody writes to would be waited for here.
  explicit Descriptor(const std::string& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ < 0) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

bool begins_with(std::span<const uint8_t> file, std::initializer_list<uint8_t> magic) {
  return file.size() >= magic.size() && std::equal(magic.begin(), magic.end(), file.begin());
}

}  // namespace

void read_file(const std::string& path, int64_t limit_bytes, std::vector<uint8_t>& bytes) {
  const Descriptor file(path);
  struct stat status {};
  if (::fstat(file.value(), &status) != 0 || !S_ISREG(status.st_mode)) {
    fail_input("{}: is not a regular file", path);
  }
  if (status.st_size == 0) fail_input("{}: is empty", path);
  if (status.st_size > limit_bytes) {
    fail_input("{}: has {} bytes, expected at most {}", path, status.st_size, limit_bytes);
  }
  bytes.resize(static_cast<size_t>(status.st_size));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.value(), bytes.data() + done, bytes.size() - done);
    if (got < 0) fail_input("{}: cannot be read: {}", path, std::strerror(errno));
    if (got == 0) fail_input("{}: became shorter while it was read", path);
    done += static_cast<size_t>(got);
  }
}

void check_image_size(const std::string& name, int64_t width, int64_t height) {
  if (width > 0 && height > 0 && width <= image_pixel_limit / height) return;
  fail_input("{}: says that it has {} x {} pixels, expected 1 to {}", name, width, height,
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
