#include "core/run_status.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace tessera {
namespace {

// The file's bytes. Both processes use it at once, so its members are lock-free atomics.
struct Mapped {
  std::atomic<int64_t> finished_steps;
  std::atomic<RunFailure> failure;
  std::atomic<int32_t> waits;
  std::atomic<int32_t> absent_count;
  std::array<std::atomic<int32_t>, 64> absent;
};
static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<RunFailure>::is_always_lock_free);

void* map_status(int descriptor) {
  return ::mmap(nullptr, sizeof(Mapped), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
}

// Null where nobody wants to know, or where the file is not what the variable promises.
Mapped* own_status() {
  const char* const path = std::getenv(run_status_variable);
  if (path == nullptr) return nullptr;
  const int descriptor = ::open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  const bool fits = ::lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(sizeof(Mapped));
  void* const mapped = fits ? map_status(descriptor) : MAP_FAILED;
  ::close(descriptor);
  return mapped == MAP_FAILED ? nullptr : static_cast<Mapped*>(mapped);
}

Mapped* status() {
  static Mapped* const mapped = own_status();
  return mapped;
}

}  // namespace

void publish_finished_steps(int64_t steps) {
  if (Mapped* const mapped = status()) mapped->finished_steps = steps;
}

void publish_waiting(bool waits) {
  if (Mapped* const mapped = status()) mapped->waits = waits ? 1 : 0;
}

void publish_failure(RunFailure failure, std::span<const int> absent) {
  Mapped* const mapped = status();
  if (mapped == nullptr || mapped->failure != RunFailure::none) return;
  const size_t count = std::min(absent.size(), mapped->absent.size());
  for (size_t i = 0; i < count; ++i) mapped->absent[i] = absent[i];
  mapped->absent_count = static_cast<int32_t>(count);
  mapped->failure = failure;
}

RunStatusFile::RunStatusFile()
    : path_((std::filesystem::temp_directory_path() / "tessera-rank-XXXXXX").string()) {
  const int descriptor = ::mkostemp(path_.data(), O_CLOEXEC);
  if (descriptor < 0) fail("{}: cannot be made: {}", path_, std::strerror(errno));
  const bool sized = ::ftruncate(descriptor, sizeof(Mapped)) == 0;
  mapped_ = sized ? map_status(descriptor) : MAP_FAILED;
  const int error = errno;
  ::close(descriptor);
  if (mapped_ != MAP_FAILED) return;
  ::unlink(path_.c_str());
  fail("{}: cannot be mapped into memory: {}", path_, std::strerror(error));
}

RunStatusFile::~RunStatusFile() {
  ::munmap(mapped_, sizeof(Mapped));
  ::unlink(path_.c_str());
}

RunStatus RunStatusFile::read() const {
  const auto& mapped = *static_cast<const Mapped*>(mapped_);
  RunStatus result{.finished_steps = mapped.finished_steps,
                   .failure = mapped.failure,
                   .absent = {},
                   .waits = mapped.waits != 0};
  const auto count = std::clamp<int32_t>(mapped.absent_count, 0, std::ssize(mapped.absent));
  for (int32_t i = 0; i < count; ++i) {
    result.absent.push_back(mapped.absent[static_cast<size_t>(i)]);
  }
  return result;
}

}  // namespace tessera
