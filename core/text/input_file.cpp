#include "core/text/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace tessera {

// Without O_NONBLOCK, opening a pipe would wait for a writer.
InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail_with_reason(errno, path + ": cannot be opened");
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    ::close(descriptor_);
    fail_with_reason(error, path + ": cannot be read");
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail_input("{}: is not a regular file", path);
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::will_read(int64_t position, int64_t bytes) const {
  ::posix_fadvise(descriptor_, position, bytes, POSIX_FADV_WILLNEED);
}

void InputFile::read_at(int64_t position, void* data, size_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, next, bytes, position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("{}: reading at byte {} failed: {}", path_, position, std::strerror(errno));
    if (got == 0) {
      fail("{}: has become shorter since it was opened: there is no byte {}, of {} that it had",
           path_, position, size_);
    }
    next += got;
    position += got;
    bytes -= static_cast<size_t>(got);
  }
}

void fail_to_open(int error, const std::string& text) {
  for (const int other : {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EIO, ESTALE}) {
    if (error == other) fail("{}", text);
  }
  fail_input("{}", text);
}

void fail_with_reason(int error, const std::string& text) {
  fail_to_open(error, fmt::format("{}: {}", text, std::strerror(error)));
}

bool has_gzip_magic(const InputFile& file, int64_t position) {
  constexpr std::array<uint8_t, 2> magic = {0x1F, 0x8B};
  std::array<uint8_t, 2> bytes{};
  if (file.size() - position < std::ssize(bytes)) return false;
  file.read_at(position, bytes.data(), bytes.size());
  return bytes == magic;
}

bool has_name(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

}  // namespace tessera
