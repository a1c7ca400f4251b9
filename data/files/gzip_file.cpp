#include "data/files/gzip_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <zlib.h>

#include "core/error.h"

namespace tessera::data {
namespace {

constexpr size_t most_at_once = size_t{1} << 30;  // gzread returns an int
constexpr int64_t most_compression = 1032;        // deflate's best: 258 bytes from two bits

gzFile handle(const std::shared_ptr<void>& file) { return static_cast<gzFile>(file.get()); }

}  // namespace

GzipFile::GzipFile(const std::string& path) : path_(path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    if (!error && std::filesystem::exists(path)) fail_input("{}: is not a regular file", path);
    fail_input("{}: cannot be opened: {}", path, std::strerror(error ? error.value() : ENOENT));
  }
  file_bytes_ = static_cast<int64_t>(std::filesystem::file_size(path, error));
  const gzFile opened = ::gzopen(path.c_str(), "rb");
  if (opened == nullptr) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  file_ = {opened, [](void* file) { ::gzclose(static_cast<gzFile>(file)); }};
}

size_t GzipFile::read(std::span<uint8_t> out) {
  size_t done = 0;
  while (done < out.size()) {
    const auto most = static_cast<unsigned>(std::min(out.size() - done, most_at_once));
    const int got = ::gzread(handle(file_), out.data() + done, most);
    if (got > 0) done += static_cast<size_t>(got);
    if (got == static_cast<int>(most)) continue;
    int code = Z_OK;
    const char* text = ::gzerror(handle(file_), &code);
    if (code != Z_OK) {
      fail_input("{}: cannot be read: {}", path_, code == Z_ERRNO ? std::strerror(errno) : text);
    }
    break;
  }
  return done;
}

int64_t GzipFile::most_bytes() {
  return ::gzdirect(handle(file_)) != 0 ? file_bytes_ : file_bytes_ * most_compression;
}

}  // namespace tessera::data
