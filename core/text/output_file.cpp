#include "core/text/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace tessera {
namespace {

// The file that a path names, through links: a rename would otherwise replace the link. Refuses
// what a rename must not replace: folders, devices, files that are write-protected.
std::string destination(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return path;
  if (error) fail_input("{}: cannot be written: {}", path, error.message());
  if (!std::filesystem::is_regular_file(status)) {
    fail_input("{}: cannot be written: it is there and is not a regular file", path);
  }
  if (::access(path.c_str(), W_OK) != 0) {
    fail_input("{}: cannot be written: {}", path, std::strerror(errno));
  }
  return std::filesystem::canonical(path).string();
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(destination(path)), temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  descriptor_ = ::open(temporary_.c_str(), flags, 0666);
  if (descriptor_ < 0) fail_input("{}: cannot be written: {}", path, std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("{}: writing failed: {}", path_, std::strerror(errno));
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void OutputFile::write_at(int64_t position, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, bytes, position);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("{}: writing failed: {}", path_, std::strerror(errno));
    }
    next += written;
    position += written;
    bytes -= static_cast<size_t>(written);
  }
}

void OutputFile::commit() {
  // The bytes before the name: a crash must not leave an empty file under the final name.
  if (::fsync(descriptor_) != 0) fail("{}: writing failed: {}", path_, std::strerror(errno));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("{}: renaming {} failed: {}", path_, temporary_, std::strerror(errno));
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace tessera
