#include "core/text/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/text/input_file.h"

namespace tessera {
namespace {

[[noreturn]] void fail_to_write(const std::string& path, int error, const std::string& why) {
  fail_to_open(error, fmt::format("{}: cannot be written: {}", path, why));
}

// Follows the links of a path, because a rename would replace the link itself. A link to a missing
// file is not followed: the rename replaces this link. Refuses folders, devices and write-protected
// files, which a rename must not replace.
std::string destination(const std::string& path) {
  if (path.empty()) fail_input("an output has an empty path");
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return path;
  if (error) fail_to_write(path, error.value(), error.message());
  if (!std::filesystem::is_regular_file(status)) {
    fail_input("{}: cannot be written: it exists and is not a regular file", path);
  }
  if (::access(path.c_str(), W_OK) != 0) fail_to_write(path, errno, std::strerror(errno));
  return std::filesystem::canonical(path).string();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  std::string text = name.data();
  std::ranges::replace(text, '/', '_');
  return text;
}

// Locks a temporary file. Returns false if another process has the lock, or if the file system has
// no locks. The writer of a temporary file keeps the file locked until the writer closes the file
// or ends. So an unlocked file was left behind by a killed process. The PID in the name does not
// show whether the writer lives, because each container has its own PIDs.
bool lock(int descriptor) { return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

// True for a temporary name: `begin`, a number and ".tmp".
bool is_temporary(std::string_view name, std::string_view begin) {
  constexpr std::string_view end = ".tmp";
  if (!name.starts_with(begin) || !name.ends_with(end)) return false;
  name.remove_prefix(begin.size());
  if (name.size() <= end.size()) return false;
  name.remove_suffix(end.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

void remove_left_behind(const std::string& path, const std::string& host) {
  const std::filesystem::path destination(path);
  const std::string begin = fmt::format("{}.{}.", destination.filename().string(), host);
  const auto folder = destination.has_parent_path() ? destination.parent_path() : ".";
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!is_temporary(entry->path().filename().string(), begin)) continue;
    const char* const name = entry->path().c_str();
    const int file = ::open(name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) continue;
    struct stat status {};
    if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && lock(file)) ::unlink(name);
    ::close(file);
  }
}

}  // namespace

void fail_beyond_file_size_limit() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    if (::sigaction(SIGXFSZ, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGXFSZ, &action, nullptr);
  });
}

std::string why_not_made(const std::string& path, int error) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (error == ENOENT && !folder.empty() && !std::filesystem::exists(folder, ignored)) {
    return fmt::format("the folder {} does not exist", folder.string());
  }
  return std::strerror(error);
}

OutputFile::OutputFile(const std::string& path) : path_(destination(path)) {
  fail_beyond_file_size_limit();
  const std::string host = host_name();
  temporary_ = fmt::format("{}.{}.{}.tmp", path_, host, ::getpid());
  remove_left_behind(path_, host);
  // Another process that removes old temporary files may briefly lock the new temporary file, or
  // may remove it. Opening is therefore tried several times.
  constexpr int attempts = 100;
  for (int i = 0; i < attempts; ++i) {
    if (open_temporary()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fail_input("{}: cannot be written: {} is in use", path_, temporary_);
}

// Returns false if another process has locked the file, or has removed it before this process
// locked it. Another process removes an unlocked file, because the file looks left behind. Throws
// if the file cannot be opened or emptied.
bool OutputFile::open_temporary() {
  const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  descriptor_ = ::open(temporary_.c_str(), flags, 0666);
  if (descriptor_ < 0) {
    const int error = errno;
    fail_to_write(path_, error, why_not_made(path_, error));
  }
  struct stat status {};
  const bool locked = lock(descriptor_);
  // EWOULDBLOCK: another process has the lock. Any other error means that the file system has no
  // locks. The file is then used without a lock.
  const bool is_written = !locked && errno == EWOULDBLOCK;
  struct stat named {};
  const bool has_name = ::fstat(descriptor_, &status) == 0 &&
                        ::stat(temporary_.c_str(), &named) == 0 && status.st_dev == named.st_dev &&
                        status.st_ino == named.st_ino;
  if (has_name && !is_written && ::ftruncate(descriptor_, 0) == 0) {
    // The new file gets the permissions of the file that it will replace.
    struct stat replaced {};
    if (::stat(path_.c_str(), &replaced) == 0) (void)::fchmod(descriptor_, replaced.st_mode & 0777);
    return true;
  }
  const int error = errno;
  ::close(std::exchange(descriptor_, -1));
  if (has_name && !is_written) fail_to_write(path_, error, std::strerror(error));
  return false;
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

// Throws the error in errno. The file must not appear under its name, even if the caller catches
// the exception and calls commit().
void OutputFile::fail_to_complete() {
  failed_ = true;
  fail("{}: writing failed: {}", path_, std::strerror(errno));
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_to_complete();
    }
    next += written;
    bytes -= static_cast<size_t>(written);
    flush_in_time(written);
  }
}

void OutputFile::write_at(int64_t position, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, bytes, position);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_to_complete();
    }
    next += written;
    position += written;
    bytes -= static_cast<size_t>(written);
    flush_in_time(written);
  }
}

// A single fsync at the end of a large file could take so long that other ranks time out. Therefore
// the file is flushed whenever `most` bytes have been written since the last flush. In between, the
// system starts to write each `piece` to disk while the program produces the next piece.
void OutputFile::flush_in_time(int64_t written) {
  constexpr int64_t most = int64_t{256} << 20;
  constexpr int64_t piece = int64_t{16} << 20;
  const bool ends_piece = unflushed_ / piece != (unflushed_ + written) / piece;
  unflushed_ += written;
  synced_ = false;
  if (ends_piece) ::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE);
  if (unflushed_ < most) return;
  if (::fdatasync(descriptor_) != 0) fail_to_complete();
  unflushed_ = 0;
}

void OutputFile::sync() {
  TESSERA_CHECK(!failed_, "{}: is not completed, because writing it has failed before", path_);
  if (synced_) return;
  if (::fsync(descriptor_) != 0) fail_to_complete();
  unflushed_ = 0;
  synced_ = true;
}

void OutputFile::commit() {
  // The bytes go to disk before the rename. Otherwise the final name could belong to an empty file
  // after a crash.
  sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("{}: renaming {} failed: {}", path_, temporary_, std::strerror(errno));
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace tessera
