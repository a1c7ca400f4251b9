#include "core/run_status.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace tessera {
namespace {

// The contents of the status file. Two processes access the file at the same time, so its fields
// are lock-free atomics.
struct Mapped {
  std::atomic<int64_t> finished_steps;
  std::atomic<RunFailure> failure;
  std::atomic<int32_t> waits;
  std::atomic<int32_t> threads;
  std::atomic<int32_t> absent_count;
  std::array<std::atomic<int32_t>, 64> absent;
};
static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<RunFailure>::is_always_lock_free);

void* map_status(int descriptor) {
  return ::mmap(nullptr, sizeof(Mapped), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
}

constexpr const char* file_name = "tessera-run-status";

// True if `descriptor` refers to a status file. A program between the starter and this process may
// have closed the inherited file and opened another file under the same descriptor.
bool is_status(int descriptor) {
  std::array<char, 64> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  struct stat file {};
  if (length <= 0) return false;
  const std::string_view name(target.data(), static_cast<size_t>(length));
  return name.find(file_name) != std::string_view::npos && ::fstat(descriptor, &file) == 0 &&
         file.st_size == static_cast<off_t>(sizeof(Mapped));
}

// Returns nullptr if the starter has not passed a status file, or if mapping the file fails.
Mapped* own_status() {
  const char* const text = std::getenv(run_status_variable);
  if (text == nullptr) return nullptr;
  int descriptor = -1;
  const std::string_view number = text;
  std::from_chars(number.data(), number.data() + number.size(), descriptor);
  if (descriptor < 0 || !is_status(descriptor)) return nullptr;
  void* const mapped = map_status(descriptor);
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

void publish_threads(int threads) {
  if (Mapped* const mapped = status()) mapped->threads = threads;
}

void publish_failure(RunFailure failure, std::span<const int> absent) {
  static std::atomic_flag published;
  Mapped* const mapped = status();
  if (mapped == nullptr || published.test_and_set()) return;
  // The ranks are written before the failure, so that a starter that sees the failure also sees the
  // ranks.
  const size_t count = std::min(absent.size(), mapped->absent.size());
  for (size_t i = 0; i < count; ++i) mapped->absent[i] = absent[i];
  mapped->absent_count = static_cast<int32_t>(count);
  mapped->failure = failure;
}

RunStatusFile::RunStatusFile() : descriptor_(::memfd_create(file_name, 0)) {
  if (descriptor_ < 0) fail("an in-memory file cannot be created: {}", std::strerror(errno));
  const bool sized = ::ftruncate(descriptor_, sizeof(Mapped)) == 0;
  mapped_ = sized ? map_status(descriptor_) : MAP_FAILED;
  if (mapped_ != MAP_FAILED) return;
  const int error = errno;
  ::close(descriptor_);
  fail("an in-memory file cannot be mapped: {}", std::strerror(error));
}

RunStatusFile::~RunStatusFile() {
  ::munmap(mapped_, sizeof(Mapped));
  ::close(descriptor_);
}

RunStatus RunStatusFile::read() const {
  const auto& mapped = *static_cast<const Mapped*>(mapped_);
  RunStatus result{.finished_steps = mapped.finished_steps,
                   .failure = mapped.failure,
                   .absent = {},
                   .waits = mapped.waits != 0,
                   .threads = mapped.threads};
  const auto count = std::clamp<int32_t>(mapped.absent_count, 0, std::ssize(mapped.absent));
  for (int32_t i = 0; i < count; ++i) {
    result.absent.push_back(mapped.absent[static_cast<size_t>(i)]);
  }
  return result;
}

}  // namespace tessera
